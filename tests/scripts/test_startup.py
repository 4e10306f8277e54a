"""Where the time went from a job's creation to its first step."""

import copy
import json
from dataclasses import replace

import pytest
import recorded
import startup
from answering import JOB, Server, pod
from recorded import at, event, job, master, pending, reported, started, status, worker

from phases import report
from phases.split import split
from phases.waits import NotYet
from torchtally import events

REST = "rendezvous+data+first step"
RESUMED = events.Resumed(task="fashion-mnist", world=4, checkpoint="/output/a", epoch=2, position=0, discarded=0)


def test_each_pod_and_the_job_add_up_to_the_first_step() -> None:
    found = split(job(master(), worker()))
    assert found.seconds == 20.5
    assert found.pods == {
        "demo-master-0": {
            "controller": 1,
            "scheduling": 4,  # its volume's provisioning included
            "sandbox": 1,
            "init": 0,  # it has none
            "pull": 2.5,  # as the event says, waiting included
            "start": 0.5,
            "import": 3.25,
            "rendezvous": 4.25,
            "data": 1.5,
            "first step": 2.5,
        },
        "demo-worker-0": {
            "controller": 1,
            "scheduling": 1,
            "sandbox": 2,
            "init": 6,
            "pull": 0,  # the node has it
            "start": 1,
            "import": 4.5,
            "rendezvous": 1,
            "data": 0.5,
            "first step": 3.5,
        },
    }
    # From the last pod that was through a phase to the last that was through the next.
    assert found.job == {
        "controller": 1,
        "scheduling": 4,
        "sandbox": 1,
        "init": 4,
        "pull": 0,
        "start": 1,
        "import": 4.5,
        "rendezvous": 1,
        "data": 1.5,
        "first step": 2.5,
    }


def test_a_log_without_the_entry_point_joins_what_it_does_not_tell_apart() -> None:
    told = json.dumps({"samples": 2560, "seconds": 0.8, "first_step": job().created + 20.5})
    by_hand = replace(master(), log=['{"not": "it"}', told])
    found = split(job(by_hand, replace(worker(), log=[])))
    assert found.seconds == 20.5
    assert found.job[f"import+{REST}"] == 9.5 and "import" not in found.job


def test_events_that_are_gone_join_phases_of_all_pods() -> None:
    found = split(job(master(), replace(worker(), events=[])))
    last = ["import", "rendezvous", "data", "first step"]
    assert list(found.job) == ["controller", "scheduling", "sandbox+init", "pull+start", *last]
    assert found.pods["demo-worker-0"]["sandbox+init"] == 8
    assert sum(found.pods["demo-worker-0"].values()) == sum(found.job.values()) == 20.5


def test_a_pod_that_restarted_before_the_first_step_has_a_phase_for_that() -> None:
    again = worker()
    assert again.found
    again.found["status"]["containerStatuses"] = [status(16, restarts=1, previous=11)]
    again.events.append(event("Started", 16, "Started container pytorch"))
    again = replace(again, log=[started(15.5, 1), started(18.5, 1)])
    found = split(job(master(), again))
    assert [found.pods["demo-worker-0"][phase] for phase in ("start", "restarts", "import", REST)] == [1, 5, 2.5, 2]
    assert found.pods["demo-master-0"]["restarts"] == 0

    # Neither its events nor its status know of the first start of three.
    forgetful = copy.deepcopy(again)
    assert forgetful.found
    forgetful.found["status"]["containerStatuses"][0]["restartCount"] = 2
    found = split(
        job(master(), replace(forgetful, events=[each for each in again.events if each["reason"] == "Pulled"]))
    )
    assert found.pods["demo-worker-0"]["start+restarts"] == 6


def test_a_restart_after_the_first_step_changes_nothing() -> None:
    later = worker()
    assert later.found
    later.found["status"]["containerStatuses"] = [status(40, restarts=1, previous=11)]
    later.events.append(event("Started", 40, "Started container pytorch"))
    assert split(job(master(), later)) == split(job(master(), worker()))


def test_a_pod_that_came_later_is_left_out() -> None:
    anew = worker(1)
    assert anew.found
    anew.found["status"]["containerStatuses"] = [status(50)]
    told = job(master(), worker(), replace(anew, events=[]))
    found = split(told)
    assert (list(found.pods), found.left_out) == (["demo-master-0", "demo-worker-0"], ["demo-worker-1"])
    assert report.as_text(told, found).endswith("note: demo-worker-1 is left out: it did not run at the first step")


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
}
SCHEDULED = {"type": "PodScheduled", "status": "True"}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "alpine:3.10"'}}


@pytest.mark.parametrize(
    ("waiting", "why"),
    [
        (pending(0, [UNSCHEDULABLE]), " (Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.)"),
        (
            pending(0, [SCHEDULED], recorded.init_container(BACK_OFF)),
            ' (init-pytorch: ImagePullBackOff: Back-off pulling image "alpine:3.10")',
        ),
        (
            pending(0, [SCHEDULED], recorded.init_container({"running": {"startedAt": at(5)}})),
            " (init-pytorch runs)",
        ),
        (pending(0, [SCHEDULED], recorded.init_container({"waiting": {"reason": "PodInitializing"}})), ""),
    ],
)
def test_a_pod_that_is_pending_is_named_with_its_reason(waiting: recorded.Pod, why: str) -> None:
    begun = replace(master(), log=master().log[:1])
    with pytest.raises(NotYet) as told:
        split(job(begun, waiting))
    assert str(told.value) == f"job demo (Running) has not made its first step: pod demo-worker-0 is Pending{why}"


def test_why_there_is_no_first_step() -> None:
    begun, gone = replace(master(), log=master().log[:1]), replace(worker(), found=None, log=[])
    with pytest.raises(NotYet, match=r"\(Running\) has not logged its first step \(the event “step”"):
        split(job(begun, worker()))
    with pytest.raises(NotYet, match=r"there is no pod demo-worker-0 \(2 of 3 pods do not run\)$"):
        split(job(begun, gone, gone))
    with pytest.raises(NotYet, match=r"in logs that are gone: demo-master-0 has resumed run 3f9c2a7b10de$"):
        split(job(replace(master(), log=[reported(99.5, RESUMED), reported(99.75, events.Step(epoch=2))]), worker()))


def test_the_table_and_what_its_columns_are() -> None:
    told = job(master(), worker())
    text = report.as_text(told, split(told)).splitlines()
    assert text[0] == "job demo made its first step 20.5 s after 2026-01-02T03:04:00Z, when it was created"
    header = ["seconds", "controller", "scheduling", "sandbox", "init", "pull", "start", "import", "rendezvous", "data"]
    assert text[2].split() == [*header, "first", "step", "together"]
    master_s = ["1.0", "4.0", "1.0", "0.0", "2.5", "0.5", "3.2", "4.2", "1.5", "2.5", "20.5"]
    assert text[3].split() == ["demo-master-0", *master_s]
    assert text[5].split()[0] == "all"
    assert {line.split("  ")[0] for line in text[7:17]} == {*header[1:], "first step"}
    assert any(line.startswith("± 1 s") for line in text)


LOG = "/log?container=pytorch&limitBytes=1048576"


def events_of(name: str) -> str:
    chosen = f"involvedObject.kind%3DPod%2CinvolvedObject.uid%3Duid-{name}"
    return f"/api/v1/namespaces/trial/events?fieldSelector={chosen}"


@pytest.fixture
def cluster(server: Server) -> Server:
    """The job of a master and a worker, as an API server has it."""
    server.job["metadata"]["creationTimestamp"] = at(0)
    server.job["spec"]["pytorchReplicaSpecs"] = {"Master": {}, "Worker": {}}
    server.state("Running")
    for each in (master(), worker()):
        server.answers[pod(each.name)] = 200, each.found
        server.answers[events_of(each.name)] = 200, {"kind": "EventList", "items": each.events}
        server.answers[pod(each.name) + LOG] = 200, "".join(f"{line}\n" for line in each.log)
    return server


def test_it_is_read_from_the_cluster(cluster: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert startup.main(["demo", "-n", "trial", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = split(job(master(), worker()))
    assert (told["seconds"], told["phases"], told["pods"]) == (expected.seconds, expected.job, expected.pods)
    assert (told["job"], told["namespace"], told["created"]) == ("demo", "trial", "2026-01-02T03:04:00Z")
    fields = {word.strip('"') for word in report.JSON_HELP.replace(",", " ").split() if word[0] == '"'}
    assert told.keys() == fields


def test_the_first_start_of_a_pod_that_restarted_is_in_the_log_before(
    cluster: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    again = master().found
    assert again
    again["status"]["containerStatuses"] = [status(40, restarts=1, previous=9)]
    cluster.answers[pod("demo-master-0")] = 200, again
    before = LOG + "&previous=true"
    cluster.answers[pod("demo-master-0") + before] = cluster.answers[pod("demo-master-0") + LOG]
    resumed = [reported(43.5, RESUMED), reported(44.0, events.Step(epoch=2))]
    cluster.answers[pod("demo-master-0") + LOG] = 200, "\n".join(resumed)
    assert startup.main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == 20.5


def test_exit_status_1_without_a_first_step_and_2_for_bad_input(
    cluster: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers[pod("demo-worker-0")] = 200, pending(0, [UNSCHEDULABLE]).found
    waits = {"kind": "Status", "code": 400, "message": 'container "pytorch" is waiting to start: PodInitializing'}
    for name in ("demo-master-0", "demo-worker-0"):
        cluster.answers[pod(name) + LOG] = 400, waits
    assert startup.main(["demo"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("startup: job demo (Running) has not made its first step: pod demo-worker-0 is Pending")

    del cluster.answers[events_of("demo-master-0")]  # the server forbids what it has no answer to
    assert startup.main(["demo"]) == 2
    assert "a role must allow get, list on pods, pods/log and events" in capsys.readouterr().err

    cluster.answers[JOB] = 404, {"kind": "Status", "code": 404, "details": {"name": "demo"}}
    assert startup.main(["demo"]) == 2
    assert capsys.readouterr().err.startswith("startup: no PyTorchJob demo in namespace trial")
