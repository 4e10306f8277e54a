"""The verifier: judges runs from their lines alone, and names every reason against a proof. Imports numpy, never torch.

log              finds tally lines and last lines in logs (log_file: of any encoding; log_events: its events)
line_groups      holds the lines of an epoch's ranks together, in little memory
container_logs   extracts a program's lines from the formats of container runtimes and log collectors
expected         the samples that each rank should have consumed
lineage          which attempts of a run its final weights come from
growth           gives the newest plan to lines of earlier attempts that planned fewer epochs
verdict          judges each run by all of these checks:
line_check       the lines, against their own fields, each other and the plan
digest_check     the lost and duplicated samples of a line, against its digest (diagnosis: in words)
summary_check    the last line of the run, against its own fields and the other lines
statement_check  a proof in place of logs, against its lines
outcome          what a judgement comes to, and its exit status (problem: a reason why a proof does not hold)
conclusion       the final sentence on a run, or on several
phrasing         the wording of parts of sentences
report           the verdicts as a table or JSON
observation      that in a log: see torchtally.observed
"""
