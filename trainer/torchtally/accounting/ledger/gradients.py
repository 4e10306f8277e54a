"""Which batches are in the weights: an optimizer has stepped while the gradients of their losses were there.

`weigh` ties a loss to its batches by a hook of autograd, and the hooks of each named optimizer tell when it steps. A
batch whose gradients are cleared is dropped by the program at the next step, unless its loss has another backward pass
before, or the program says that it has put them back.
"""

import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import partial, wraps
from itertools import count
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.optim.optimizer import Optimizer

from torchtally import compat
from torchtally.accounting.ledger.batch_in_flight import Handed
from torchtally.accounting.ledger.beside import Beside
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.open_epochs import Open
from torchtally.accounting.ledger.optimizer_gradients import READ, Named
from torchtally.accounting.ledger.weights import Weights
from torchtally.checkpoints.objects import tensors
from torchtally.distributed import waiting
from torchtally.errors import Refused

CLEARED = "its gradients were cleared before a step"
FAILED = "its backward pass ended by an error"
NOTHING = "its loss had a gradient of 0"
AGAIN = (
    "an optimizer has stepped with the gradients of batches that count already, so it has trained them again: call "
    "optimizer.zero_grad() after each step"
)
SKIPPED = (
    "an optimizer has stepped with the gradients of a batch that counts as dropped: call skip(reason) before the "
    "backward pass, or optimizer.zero_grad() after it"
)
TORN = (
    "an optimizer has stepped with gradients of {}, whose backward pass ended by an error, so they are there in part: "
    "call optimizer.zero_grad() after the error"
)
REPEATED = "batches of {} were trained by several steps"
OUTSIDE = "an optimizer has stepped with gradients of no batch, from outside the loops"
ANEW = "from a batch of {} on, no step has trained the parameters of those before"
Trained = dict[int, "weakref.ref[Tensor]"]
_FACTORS = {"MulBackward0", "DivBackward0", "WhereBackward0", "NanToNumBackward0"}
_NOT_COUNTED = "holds() must receive batches that do not count yet, as the loop has received them"
_AS_RECEIVED = "weigh() must receive batches as the loop has received them, of an epoch in progress that trains"


class Gradients:
    """The batches of one account, from the loop to the weights.

    Attributes:
        open: The epochs in progress of each phase.
        weights: What steps leave.
        beside: What steps use beside batches.
        trained: The parameters of optimizers that have stepped with the gradients of a batch, by `id()`: another object
            once there are more.
    """

    def __init__(self) -> None:
        self.open, self.weights = Open(), Weights()
        self.beside = Beside(self.open)
        self.trained: Trained = {}
        self._named: list[Named] = []
        self._out: list[Handed] = []  # handed out, and neither counted nor dropped for good
        self._last: tuple[Handed, ...] = ()  # of the last loss that was weighed
        self._cleared: dict[Handed, str] = {}  # dropped at the next step, and why
        self._hooks: dict[Named, tuple[Any, Any]] = {}
        self._numbers = count(1)
        self._ended: defaultdict[str, int] = defaultdict(
            int
        )  # by phase: `counts` before the first step of its next epoch
        self._models: dict[int, int] = {}  # of what is trained, by `id()`: numbers
        self._stepped: defaultdict[str, set[int]] = defaultdict(set)  # by phase: models that its batches have trained
        self._left: dict[str, set[int]] = {}  # by phase: those that were trained before another one took their place
        self._repeated: set[str] = set()  # phases of batches that an optimizer has stepped with again
        self._pass = -1  # the number of the last backward pass
        self._passing: dict[Handed, int] = {}  # of backward passes in progress: their numbers
        self._reads = 0  # of gradients of losses on a GPU
        self._wrong: str | None = None  # what a step has done
        self.beyond: str | None = None  # why a batch that was handed out cannot have a loss
        self.looked = False  # whether the program has left that batch's epoch
        self.watches = False  # whether the program has named an optimizer, which it may have let go since
        self.counts = 0  # steps that have counted a batch
        self.cleared = False  # whether a batch was dropped because its gradients were

    def name(self, optimizer: Optimizer, *, replicated: bool = True) -> None:
        """Count the batches whose gradients the steps of an optimizer use, and of those that it steps itself."""
        if optimizer in self.optimizers:
            return
        if getattr(optimizer, "_overlap_with_ddp", False):
            raise Refused(
                f"a {type(optimizer).__name__} with overlap_with_ddp=True leaves out its first steps, so their samples "
                "would count without being in the weights: it must be False"
            )
        if hasattr(optimizer, "defaults"):  # torch's PostLocalSGDOptimizer has none, and no hooks
            self._watch(optimizer, replicated)
        for each in vars(optimizer).values():
            if isinstance(each, Optimizer):
                self.name(each, replicated=replicated)

    def _watch(self, optimizer: Optimizer, replicated: bool) -> None:
        named = Named(weakref.ref(optimizer, self._forget), next(self._numbers), replicated)
        self._named, self.watches = [*self._named, named], True
        self._hooks[named] = (
            optimizer.register_step_pre_hook(lambda own, *_: self._will_step(named, own)),
            optimizer.register_step_post_hook(lambda own, *_: self._has_stepped(named, own)),
        )
        # On the instance, as schedulers wrap step(): a cleared gradient of zeros cannot be told from a computed one.
        zero_grad = vars(optimizer).get("zero_grad")

        @wraps(type(optimizer).zero_grad)
        def noted(*arguments: Any, **options: Any) -> None:
            self._tear()
            self._find_by_hand(named)
            if zero_grad:
                zero_grad(*arguments, **options)
            elif own := named.reference():
                type(own).zero_grad(own, *arguments, **options)
            named.sought, named.torn = {}, None
            self.beside.look()
            waiting = [each for each in named.held if not each.counted]
            self._clear(named)
            for other in self._named:  # of the same parameters
                if any(each in other.held for each in waiting):
                    self._look(other)

        optimizer.zero_grad = noted  # type: ignore[method-assign]

    def close(self) -> None:
        """Leave the optimizers alone."""
        for hooks in self._hooks.values():
            for hook in hooks:
                hook.remove()
        for each in self.optimizers:
            vars(each).pop("zero_grad", None)  # another account may have named it as well

    def _forget(self, reference: "weakref.ref[Optimizer]") -> None:
        """The program has let go of an optimizer."""
        gone = [each for each in self._named if each.reference is reference]
        self._named = [each for each in self._named if each not in gone]  # a new list: this can come within a loop
        for each in gone:
            self._hooks.pop(each, None)

    def hand_out(self, batch: Handed) -> None:
        """Take note of a batch that the loop receives."""
        self._out = [each for each in self._out if not (each.counted or each.left_out)]
        self._out.append(batch)
        if self.looked:
            self.beyond, self.looked = None, False

    def has_loss(self, epoch: EpochInProgress) -> bool:
        """Whether a batch of an epoch has a loss."""
        return any(each.weighed and each.epoch is epoch for each in self._out)

    def arrive(self, epoch: EpochInProgress) -> None:
        """Take note that the loop receives a batch of an epoch."""
        self._tear()
        self.beside.arrive(epoch, self._named)

    def leave(self, batch: Handed) -> None:
        """Take note that the loop has left an epoch at this batch, perhaps after a look at it."""
        batch.left = not batch.weighed
        self.beside.leave(batch.epoch)

    def forget(self, epoch: EpochInProgress) -> None:
        """Let go of the batches of an epoch, which has not begun yet after all."""
        self._out = [each for each in self._out if each.epoch is not epoch]

    def weigh(self, loss: Tensor, named: Collection[Any], *, normalized: bool) -> Tensor:
        """Tie a loss to its batches: `Account.weigh`. Raises Refused if it is not clear which these are."""
        self._check()
        if not isinstance(loss, Tensor):
            raise Refused(f"weigh() takes a loss as a tensor, before its backward pass, not a {type(loss).__name__}")
        if not self.watches:
            raise Refused("weigh() needs account.optimizer(optimizer) before the first batch, with each one that steps")
        batches = tuple(map(self._find, named)) if named else self._unnamed()
        shares = {1.0 if normalized and each.share else each.share for each in batches}
        if len(shares) > 1:
            raise Refused(
                f"weigh() ties one loss to {len(batches)} batches that are different shares of their steps: weigh the "
                "mean loss of each, weigh(loss, batch), and add them up; or pass "
                "normalized=True where the loop normalizes it over all ranks"
            )
        self._tear()
        self._last = batches
        self.beside.enter(batches[-1].epoch, self._named)
        for each in batches:
            each.weighed = True
        (share,) = shares

        def passes(gradient: Tensor | None) -> None:
            if share and (gradient is None or self._is_zero(gradient)):
                self._pass_nothing(batches)
            else:
                self._passes(batches)

        def is_multiplied(gradient: Tensor) -> Tensor | None:
            if factor is None:
                passes(gradient)
            return None if share == 1 else gradient * share

        if loss.requires_grad:
            if factor := _last_factor(loss):
                factor.register_hook(lambda gradients, _: passes(next(filter(_is_tensor, gradients), None)))
            compat.hook(loss, is_multiplied)
        return loss

    def hold(self, named: Collection[Any]) -> None:
        """Take the gradients of these batches for those that are there: `Account.holds`. Raises Refused."""
        there = [each for each in self._named if each.gradients]
        for each in named:
            batch = self._find(each, _NOT_COUNTED)
            if batch.counted:
                raise Refused(f"{batch.place}: {_NOT_COUNTED}")
            if batch.left_out or not batch.weighed:
                how = "is dropped" if batch.left_out else "has no loss"
                raise Refused(f"{batch.place}: holds() must receive a batch with a loss; this one {how}")
            if not there:
                raise Refused(
                    f"{batch.place}: holds() must come once its gradients are there, and none are: call it after "
                    "the loop has put them there, before the step"
                )
            self._cleared.pop(batch, None)
            for optimizer in there:
                optimizer.sought.pop(batch, None)
                optimizer.unclear.pop(batch, None)
                optimizer.held[batch] = None

    def skip(self, epoch: EpochInProgress, step: int, reason: str) -> None:
        """Drop a batch that the program leaves out of the weights: no step may use its gradients."""
        epoch.skip(step, reason)
        for each in self._out:
            each.left_out |= each.epoch is epoch and each.step == step
        self._cleared = {each: why for each, why in self._cleared.items() if not each.left_out}
        for named in self._named:
            named.sought = {each: before for each, before in named.sought.items() if not each.left_out}

    @property
    def held(self) -> list[Handed]:
        """Batches whose gradients wait for a step."""
        found = dict.fromkeys(each for named in self._named for each in named.held)
        return [each for each in found if not (each.counted or each.left_out)]

    def settle(self, *, overdue: bool, ends: bool) -> None:
        """Drop for good what was cleared, if that is `overdue`; if the run `ends`, what overflows as well.

        Raises Refused if a step has trained batches again.
        """
        self._check()
        for named in self._named if ends else ():
            if named.held and named.overflows():
                self._clear(named)
        if overdue:
            self._drop()

    def _check(self) -> None:
        if self._wrong:
            raise Refused(self._wrong)

    def _drop(self) -> None:
        for each, why in self._cleared.items():
            each.left_out = True
            each.epoch.skip(each.step, why)
            self.cleared = True
        self._cleared = {}

    def _find(self, named: Any, wanted: str = _AS_RECEIVED) -> Handed:
        for each in reversed(self._out):
            if each.is_as(named):
                return each
        equal = [(each, places) for each in self._out if not each.left_out and (places := each.places_of(named))]
        if not equal:
            raise Refused(self.beyond or wanted)
        # A prefetcher hands out in order what it has copied, so of equal ones the first is meant that has no loss, or
        # none that names it by this tensor: a second loss must not be taken for one of the next batch.
        free = (pair for pair in equal if not pair[0].weighed or (pair[0].named and not pair[0].named & pair[1]))
        found, places = next(free, equal[-1])
        found.copies, found.named = (*found.copies, *tensors(named)), found.named | places
        return found

    def _unnamed(self) -> tuple[Handed, ...]:
        """The batch of a loss, if that is clear: the only one of its phase without one, or those of the last loss."""
        waiting = [each for each in self._out if not (each.weighed or each.left_out)]
        if self.beyond:
            raise Refused(_passed_over(waiting) if waiting else self.beyond)
        if len(waiting) > 1:
            waiting = [each for each in waiting if not each.left] or waiting
        if not waiting and self._last:
            if (last := self.beside.at) and not last.trains and last.handed > last.counted:
                raise Refused(
                    f"{last.where(last.handed)}: the losses of a phase that weigh() receives need a loader with "
                    "trains=True; name the batch of one that is trained beside it: weigh(loss, batch)"
                )
            return self._last
        if not waiting:
            raise Refused(
                "weigh() must come after the loop has received a batch of a phase that trains: iterate over what "
                "account.loader() or account.batches() has returned, and not over another DataLoader"
            )
        if len(waiting) == 1:
            return (waiting[0],)
        waiting = [each for each in waiting if each.share] or waiting[-1:]
        for each in waiting:
            own = [other for other in waiting if other.epoch.phase == each.epoch.phase]
            if passed := [other for other in own if other.epoch != own[-1].epoch]:
                raise Refused(_passed_over(passed))
            if len(own) > 1:
                raise Refused(
                    f"{waiting[-1].place}: weigh() must name the batches of this loss, as {len(waiting)} were handed "
                    "out and have no loss: weigh(loss, batch) with what the loop has received, and skip(reason) before "
                    "`continue` for one that is left out"
                )
        return tuple(waiting)

    def _passes(self, batches: Sequence[Handed]) -> None:
        """A backward pass reaches the loss of these batches, perhaps after other losses that it adds up."""
        before, self._pass = self._pass, compat.backward_number()
        if self._pass != before:
            self.beside.enter(batches[-1].epoch, self._named)
            for named in self._named:
                if named.sought or named.held or named.used or named.ready:
                    self._look_back(named)
                if named.torn and named.are_zero:
                    named.torn = None
                named.before = named.mark()
            # After FSDP and DDP, which write to the gradients at the end of a pass.
            waiting.end_pass(partial(self._has_passed, self._pass))
        for each in batches:
            self._passing[each] = self._pass
            self._cleared.pop(each, None)
            for named in self._named:
                if each not in named.held:
                    named.sought.setdefault(each, named.before)

    def _is_zero(self, gradient: Tensor) -> bool:
        """Whether the program has multiplied a loss by 0, or chosen another. On a GPU, a few are read."""
        if type(gradient) is not Tensor or (
            gradient.device.type != "cpu" and (self._reads == READ or compat.captures())
        ):
            return False
        self._reads += gradient.device.type != "cpu"
        return not gradient.any()

    def _pass_nothing(self, batches: Iterable[Handed]) -> None:
        """A backward pass reaches the loss of these batches, and adds nothing to the gradients."""
        for each in batches:
            there = each in self._passing or any(each in named.held for named in self._named)
            if not (each.counted or each.left_out or there):
                self._cleared.setdefault(each, NOTHING)

    def _look_back(self, named: Named) -> None:
        """Before a backward pass, find out what has become of the gradients of those before."""
        self._find_by_hand(named)
        self._look(named)
        named.used = named.keeps_used()
        named.again &= named.used
        named.forget_unreached()
        named.ready = [each for each in named.ready if each in named.held]  # a closure has cleared the others

    def _find_by_hand(self, named: Named) -> None:
        """Hold batches whose gradients the program has put there itself. Whether to those of others, `holds` tells."""
        if not named.put_by_hand():
            return
        if named.unclear or any(not (each.counted or each.left_out) for each in named.held):
            named.unclear |= named.held | dict.fromkeys(named.sought)
            named.held, named.sought = {}, {}
        elif named.held:
            self._clear(named)
        named.find()

    def _has_passed(self, number: int) -> None:
        """The backward pass is over. What has reached one optimizer is not put into another's gradients by hand."""
        for named in self._named:
            named.after = named.mark()
            named.again |= named.used and named.after != named.before
            named.find(named.after)
        for each in [each for each, of in self._passing.items() if of == number]:
            del self._passing[each]
            if len(self._named) > 1 and any(each in named.held for named in self._named):
                for named in self._named:
                    named.sought.pop(each, None)

    def _tear(self) -> None:
        """Outside of backward passes, drop the batches of one that ended by an error, and note what it has left."""
        if not self._passing or compat.backward_number() != -1:
            return
        failed, self._passing = [*self._passing], {}
        held = [each for each in failed if any(each in named.held for named in self._named)]
        for named in self._named:
            if named.mark() != named.before or not named.held.keys().isdisjoint(held):
                named.torn = failed[0].place
            named.sought = {each: before for each, before in named.sought.items() if each not in failed}
        for each in failed:
            if not (each.counted or each.left_out or each in held):
                self._cleared.setdefault(each, FAILED)

    def end(self, phase: str) -> tuple[list[int], list[str]]:
        """What steps have left out in an epoch, which ends, or done beside what counts.

        That are the numbers of optimizers that had gradients and made no step, and sentences.
        """
        after = next((each.first for each in self.open[phase] if each.first is not None), self.counts + 1)
        began, self._ended[phase] = self._ended[phase], after - 1
        stepped = {id(each) for named in self._named if named.stepped > began for each in named.parameters}
        idle = [
            named.number
            for named in self._named
            if phase in named.reached and not any(id(each) in stepped for each in named.parameters)
        ]
        for named in self._named:
            named.reached.discard(phase)
        return idle, self.repeated + [ANEW.format(phase)] * bool(self._left.get(phase))

    @property
    def repeated(self) -> list[str]:
        """Sentences on the phases of batches that an optimizer has stepped with again."""
        return [REPEATED.format(each) for each in sorted(self._repeated)]

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that the program has named, and still has."""
        return [found for each in self._named if (found := each.reference()) is not None]

    def _will_step(self, named: Named, optimizer: Optimizer) -> None:
        self.weights.will_step(optimizer, replicated=named.replicated, last=self.open.ends)
        self._tear()
        if named.torn and not named.are_zero:
            self._wrong = TORN.format(named.torn)
        self.beside.step(named)
        if named.sought:
            named.find() if self._passing else self._find_by_hand(named)
        self._look(named)
        named.ready = [*named.held]

    def _has_stepped(self, named: Named, optimizer: Optimizer) -> None:
        ready = dict.fromkeys([*named.ready, *named.held])  # those of a closure come within the step
        named.ready, named.unclear = [], {}
        named.forget_unreached()  # what the step has not used is not put there later
        if left_out := _is_left_out(optimizer):
            ready = {}
        if ready:
            self.counts += 1
            named.stepped, named.used = self.counts, True
            named.models = named.models or self._models_of(named)
            if named.again:
                self._wrong = AGAIN
        for each in ready:
            self._take_turns(named, each)
            if named.number in each.users:
                self._repeated.add(each.epoch.phase)
            each.users |= {named.number}
            if each.left_out:
                self._wrong = SKIPPED
            elif not each.counted:
                each.counted = True
                each.epoch.first = each.epoch.first or self.counts
                each.epoch.decide(each.step)
            named.held.pop(each, None)
        # At a rate of 0, PyTorch's checkpoints let an optimizer make its state.
        changes = not left_out and any(group.get("lr") != 0 for group in optimizer.param_groups)
        if changes and not ready:
            self.open.touch()
        alone = changes and not (ready or self._cleared or self.weights.blind)
        if self._cleared and not left_out:
            self._drop()
        self.beside.step(named, alone=alone)
        self.weights.has_stepped(optimizer, {each.epoch.phase for each in ready})

    def _models_of(self, named: Named) -> set[int]:
        """The models that an optimizer trains, from its first step on: one of its own, or those that others have."""
        own = {id(each): each for each in named.parameters}
        known = [at for at, each in own.items() if at in self.trained and self.trained[at]() is each]
        models = {self._models[at] for at in known} or {named.number}
        if added := own.keys() - known:
            self.trained = self.trained | {at: weakref.ref(own[at]) for at in added}
            self._models.update(dict.fromkeys(added, min(models)))
        return models

    def _take_turns(self, named: Named, batch: Handed) -> None:
        """Take note of the first batch that trains another model alone, and of one that trains one before it again."""
        phase = batch.epoch.phase
        stepped, left = self._stepped[phase], self._left.get(phase, set())
        if named.models & left:
            self._left[phase] = set()
        elif not (named.models & stepped or batch.users):
            self._left[phase] = {*stepped}
        stepped |= named.models

    def _look(self, named: Named) -> None:
        """Let go of batches whose gradients something else than the optimizer has cleared."""
        if named.held and named.is_cleared():
            self._clear(named)

    def _clear(self, named: Named) -> None:
        named.used = named.again = False
        held, named.held, named.unclear = named.held | named.unclear, {}, {}
        for each in held:
            elsewhere = any(each in other.held for other in self._named)
            if not (each.counted or each.left_out or elsewhere or each in self._cleared):
                self._cleared[each] = CLEARED


def _last_factor(loss: Tensor) -> Node | None:
    """Where the backward pass has come through the numbers that the program has multiplied a loss by, if any."""
    node, found = loss.grad_fn, None
    while node is not None and node.name() in _FACTORS:
        inputs = [each for each, _ in node.next_functions if each is not None]
        if len(inputs) != 1:
            break
        node, found = inputs[0], node
    return found


def _is_tensor(gradient: object) -> bool:
    return isinstance(gradient, Tensor)


def _passed_over(batches: list[Handed]) -> str:
    return (
        f"{batches[0].epoch.name}: batches have no loss, and a later epoch has begun: skip(reason) before `continue` "
        "is for one that is left out, a loader with trains=False for a pass that trains nothing, and weigh(loss, "
        "batch) for a loop that fetches ahead"
    )


def _is_left_out(optimizer: Optimizer) -> bool:
    """Whether the step of a fused optimizer was none: a GradScaler tells it that gradients overflow."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and not compat.captures() and bool(found)
