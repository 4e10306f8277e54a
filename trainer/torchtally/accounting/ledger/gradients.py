"""Which batches are in the weights: an optimizer has stepped while the gradients of their losses were there.

`weigh` ties a loss to its batches by a hook of autograd, and the hooks of each named optimizer tell when it steps. A
batch whose gradients are cleared is dropped by the program at the next step, unless its loss has another backward pass
before, or the program says that it has put them back.
"""

import weakref
from collections.abc import Collection, Iterable, Sequence
from functools import partial, wraps
from itertools import count
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.optim.optimizer import Optimizer

from torchtally import compat
from torchtally.accounting.ledger.batch_in_flight import Handed
from torchtally.accounting.ledger.beside import Beside
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.handed_out import HandedOut
from torchtally.accounting.ledger.open_epochs import Open
from torchtally.accounting.ledger.optimizer_gradients import READ, Named
from torchtally.accounting.ledger.turns import Turns
from torchtally.accounting.ledger.weights import Weights
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
HALF = (
    "an error ended a backward pass within which optimizers step, so batches are in a part of the weights: let the "
    "error end the program, which then resumes from a checkpoint"
)
OUTSIDE = "an optimizer has stepped with gradients of no batch, from outside the loops"
_FACTORS = {"MulBackward0", "DivBackward0", "WhereBackward0", "NanToNumBackward0"}
_NOT_COUNTED = "holds() must receive batches that do not count yet, as the loop has received them"


class Gradients:
    """The batches of one account, from the loop to the weights.

    Attributes:
        open: The epochs in progress of each phase.
        weights: What steps leave.
        beside: What steps use beside batches.
        handed: The batches that wait for a loss or a step.
        turns: Which models they train.
    """

    def __init__(self) -> None:
        self.open, self.weights = Open(), Weights()
        self.beside = Beside(self.open)
        self.handed, self.turns = HandedOut(), Turns()
        self._named: list[Named] = []
        self._cleared: dict[Handed, str] = {}  # dropped at the next step, and why
        self._hooks: dict[Named, tuple[Any, Any]] = {}
        self._numbers = count(1)
        # Of each backward pass in progress, by its thread and number: its batches, and whether they counted before.
        self._passing: dict[tuple[int, int], dict[Handed, bool]] = {}
        self._reads = 0  # of gradients of losses on a GPU
        self._wrong: str | None = None  # what a step has done
        self.watches = False  # whether the program has named an optimizer, which it may have let go since
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
        if _takes_hooks(optimizer):
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

    def arrive(self, epoch: EpochInProgress) -> None:
        """Take note that the loop receives a batch of an epoch."""
        self._tear()
        self.beside.arrive(epoch, self._named)

    def leave(self, batch: Handed) -> None:
        """Take note that the loop has left an epoch at this batch, perhaps after a look at it."""
        batch.left = not batch.weighed
        self.beside.leave(batch.epoch)

    def weigh(self, loss: Tensor, named: Collection[Any], *, normalized: bool) -> Tensor:
        """Tie a loss to its batches: `Account.weigh`. Raises Refused if it is not clear which these are."""
        self._check()
        if not isinstance(loss, Tensor):
            raise Refused(f"weigh() takes a loss as a tensor, before its backward pass, not a {type(loss).__name__}")
        if not self.watches:
            raise Refused("weigh() needs account.optimizer(optimizer) before the first batch, with each one that steps")
        batches = self.handed.of_loss(named, self.beside.at)
        shares = {1.0 if normalized and each.share else each.share for each in batches}
        if len(shares) > 1:
            raise Refused(
                f"weigh() ties one loss to {len(batches)} batches that are different shares of their steps: weigh the "
                "mean loss of each, weigh(loss, batch), and add them up; or pass "
                "normalized=True where the loop normalizes it over all ranks"
            )
        self._tear()
        self.handed.last = batches
        self.beside.enter(batches[-1].epoch, self._named)
        for each in batches:
            each.weighed = True
        (share,), thread = shares, get_ident()  # on a GPU, a hook has another one

        def passes(gradient: Tensor | None) -> None:
            if share and (gradient is None or self._is_zero(gradient)):
                self._pass_nothing(batches)
            else:
                self._passes(batches, thread)

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
        self._tear()
        there = [each for each in self._named if each.gradients]
        for each in named:
            batch = self.handed.find(each, _NOT_COUNTED)
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
                optimizer.torn = None

    def skip(self, epoch: EpochInProgress, step: int, reason: str) -> None:
        """Drop a batch that the program leaves out of the weights: no step may use its gradients."""
        self._tear()
        epoch.skip(step, reason)
        self.handed.skip(epoch, step)
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
        self._tear()
        self._check()
        for named in self._named if ends else ():
            self._look(named)
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

    def _passes(self, batches: Sequence[Handed], thread: int) -> None:
        """A backward pass reaches the loss of these batches, perhaps after other losses that it adds up."""
        number = thread, compat.backward_number()
        if number not in self._passing:
            self.beside.enter(batches[-1].epoch, self._named)
            for named in self._named:
                if not self._passing:  # not within another pass, as that of a checkpoint of activations
                    self._look_back(named)
                named.before = named.mark()
            self._passing[number] = {}
            # After FSDP and DDP, which write to the gradients at the end of a pass.
            waiting.end_pass(partial(self._has_passed, number))
        for each in batches:
            self._passing[number].setdefault(each, each.counted)
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
            passes = any(each in passing for passing in self._passing.values())
            there = passes or any(each in named.held for named in self._named)
            if not (each.counted or each.left_out or there):
                self._cleared.setdefault(each, NOTHING)

    def _look_back(self, named: Named) -> None:
        """Before a backward pass, find out what has become of the gradients of those before."""
        if named.torn and named.are_zero:
            named.torn = None
        if not (named.sought or named.held or named.used or named.ready):
            return
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

    def _has_passed(self, number: tuple[int, int]) -> None:
        """The backward pass is over. What has reached one optimizer is not put into another's gradients by hand."""
        for named in self._named:
            named.pass_ends()
            named.again |= named.used and named.after != named.before
            named.find(named.after)
        for each in self._passing.pop(number, ()):
            if len(self._named) > 1 and any(each in named.held for named in self._named):
                for named in self._named:
                    named.sought.pop(each, None)

    def _tear(self) -> None:
        """Outside of backward passes, drop the batches of those that an error has ended, and note what these left."""
        if not self._passing or compat.backward_number() != -1:
            return
        ended = [number for number in self._passing if number[0] == get_ident()]  # not that of a thread beside this one
        failed = [pair for number in ended for pair in self._passing.pop(number).items()]
        if any(each.counted and not counted for each, counted in failed):
            self._wrong = HALF
        held = [each for each, _ in failed if any(each in named.held for named in self._named)]
        for named in self._named:
            now = named.mark()
            for each, _ in failed:
                if named.sought.pop(each, now) != now or each in named.held:
                    named.torn = each.place
        for each, _ in failed:
            if not (each.counted or each.left_out or each in held):
                self._cleared.setdefault(each, FAILED)

    def end(self, phase: str) -> tuple[list[int], list[str]]:
        """What steps have left out in an epoch, which ends: `Turns.end`."""
        return self.turns.end(phase, self._named, self.open[phase])

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
        self.turns.begin(named, named.ready)

    def _has_stepped(self, named: Named, optimizer: Optimizer) -> None:
        ready = dict.fromkeys([*named.ready, *named.held])  # those of a closure come within the step
        named.ready, named.unclear = [], {}
        named.forget_unreached()  # what the step has not used is not put there later
        if left_out := _is_left_out(optimizer):
            ready = {}
        if ready:
            self.turns.step(named, ready)
            named.used = True
            if named.again:
                self._wrong = AGAIN
        for each in ready:
            if each.left_out:
                self._wrong = SKIPPED
            elif not each.counted:
                each.counted = True
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


def unwrapped(optimizer: Any) -> Any:
    """The optimizer whose hooks tell of steps: a library's wrapper may have none, or those of the one within."""
    while (within := getattr(optimizer, "optimizer", None)) is not None:
        if _takes_hooks(optimizer) and not isinstance(optimizer, type(within)):
            break
        optimizer = within
    return optimizer


def _takes_hooks(optimizer: Any) -> bool:
    """Whether it is no wrapper that has left out the constructor of PyTorch's optimizers."""
    try:
        optimizer.register_step_pre_hook(lambda *_: None).remove()
    except AttributeError:
        return False
    return True


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


def _is_left_out(optimizer: Optimizer) -> bool:
    """Whether the step of a fused optimizer was none: a GradScaler tells it that gradients overflow."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and not compat.captures() and bool(found)
