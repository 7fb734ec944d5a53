"""Run an entry on cases and judge what it returns: the official check, ours, and what it did wrong.

A case is two calls or three. The first has the case's inputs; the second finds other values in the
same tensors, so that results kept by address or shape are seen; some cases have a third, at other
addresses. The values of the later calls come from a seed that no entry can know. Probes (inputs
whose result is known) follow. A process that ends, hangs or grows is ended, and what is left of the
cases goes to another one.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rfops.challenge import retime, sandbox
from rfops.challenge.data import to_device
from rfops.challenge.problem import Case, Problem, error_of, spec_of, worst_element
from rfops.challenge.process import Entry, Failed, plain
from rfops.challenge.report import counts
from rfops.challenge.retime import Claim, NotTimed
from rfops.challenge.sandbox import WallsMissing
from rfops.challenge.transport import Packed, packed
from rfops.challenge.verdict import Limits, Verdict

FORBIDDEN_WORD = "stream"  # in any case, comments too
MOVED_EVERY = 4  # of so many cases one has a third call, at other addresses
MOST_RESULT = 64 << 20  # bytes beyond twice what is expected: a wrong shape is told as such
UNCOMPARABLE = "cannot be compared"
SLOWER = 1.1  # more than this: a time depends on what the inputs are


class EntryCall(NamedTuple):
    """One call of the entry: its inputs, the expected result, and the result with its record."""

    case: Case
    data: Any
    packed: Packed
    expected: Any
    result: Any
    claim: Claim | None
    us: float


def evaluate(
    problem: Problem,
    submission: Path,
    cases: list[Case],
    limits: Limits,
    root: Path | None = None,
    findings: list[bytes] | None = None,
) -> Iterator[Verdict]:
    """A verdict a case, as they come. `root`: a folder whose own problem it is. `findings` gets
    what the virtual GPU's checks found. Raises WallsMissing where the entry is not trusted."""
    refusal = refusal_of(submission.read_text(encoding="utf-8", errors="replace"))
    entry = Entry(problem, submission, limits, root, _has_walls(limits))
    try:
        for index, case in enumerate(cases):
            verdict = Verdict(spec_of(case), measured=limits.on_gpu)
            verdict.named += [refusal] if refusal else []
            try:
                _Judge(entry, verdict).judge(case, moves=index % MOVED_EVERY == 0)
            except Failed as failure:
                verdict.error = str(failure)
            if index + 1 == len(cases):
                entry.finish(verdict, findings)
            verdict.named = list(dict.fromkeys([*verdict.named, *entry.take_named()]))
            yield verdict
    finally:  # of an interrupted evaluation no process stays
        entry.stop("the evaluation has ended")


def refusal_of(text: str) -> str:
    """What the competition's bot refuses a file for, or nothing."""
    for number, line in enumerate(text.splitlines(), 1):
        if FORBIDDEN_WORD in line.lower():
            return f'the bot refuses the file: line {number} has the word "{FORBIDDEN_WORD}"'
    return ""


def _has_walls(limits: Limits) -> bool:
    try:
        sandbox.require_walls()
    except WallsMissing:
        if not limits.is_trusted:
            raise
        return False
    return True


class _Judge:
    """Judges one case: calls the entry, compares, and replays what it launched."""

    def __init__(self, entry: Entry, verdict: Verdict) -> None:
        self.entry, self.verdict, self.problem = entry, verdict, entry.problem
        self._distance = 0.0  # of the worst element

    def judge(self, case: Case, *, moves: bool) -> None:
        """Fill in the verdict. Raises Failed."""
        verdict = self.verdict
        first_call = self.run_call(case, in_place=False)
        second_call = self.run_call(self.unknown(case), in_place=True)
        entry_calls = [first_call, second_call]
        if moves:
            entry_calls.append(self.run_call(self.unknown(case), in_place=False))
        officials = [self.official(entry_call) for entry_call in entry_calls]
        verdict.official = next(filter(None, officials), "")
        if verdict.official:
            self.name_failure(not officials[0], entry_calls)
        elif verdict.strict:
            verdict.named.append(f"passes the official check, but by luck: {verdict.strict}")
        if not verdict.official:
            self.time(first_call, second_call)
        for number in range(len(self.problem.probes(case))):
            self.probe(case, number)

    def unknown(self, case: Case) -> Case:
        """The case with a seed that the entry cannot know."""
        if "seed" not in case:
            return case
        seed = self.entry.limits.seed
        return {**case, "seed": secrets.randbits(31) if seed is None else seed}

    # ------------------------------------------------------------ calls

    def run_call(self, case: Case, *, in_place: bool) -> EntryCall:
        """Call the entry on the case's inputs, in the tensors of the call before if `in_place`.
        Raises Failed where there is no result."""
        data = self.problem.generate(case)
        changes = self.entry.root or self.problem.in_place(data)  # also by the reference
        inputs = packed(copy.deepcopy(data) if changes else data)
        expected: Any = ()
        if self.entry.root:  # its own check makes what it expects, where its data lies
            max_bytes = self.entry.limits.memory // 4
        else:
            expected = self.problem.reference(data)
            max_bytes = 2 * _bytes_of(expected) + MOST_RESULT
        timed = self.entry.limits.on_gpu
        reply, blobs, results = self.entry.call(inputs, max_bytes, in_place=in_place, timed=timed)
        result = results[0] if reply.kind == "tensor" and len(results) == 1 else tuple(results)
        claim = None
        if reply.record is not None:
            claim = Claim(reply.record, blobs, reply.results, reply.kind)
        self.verdict.computed |= {plain(n): count for n, count in reply.computed.items()}
        self.verdict.beside |= {plain(n): count for n, count in reply.unrelated_ops.items()}
        return EntryCall(case, data, inputs, expected, result, claim, reply.us)

    def official(self, entry_call: EntryCall) -> str:
        """Return why the official check refuses the result, or ""; the strict check's reason goes
        to the verdict."""
        if _is_nothing(entry_call.result):
            return "custom_kernel returned no tensor"
        reason = self.checked(entry_call, entry_call.result)
        if self.entry.root or reason.startswith(UNCOMPARABLE):
            return reason
        verdict = self.verdict
        distance, worst = worst_element(entry_call.expected, entry_call.result)
        if distance >= self._distance:
            self._distance, verdict.worst = distance, worst
        if not verdict.strict:
            verdict.strict = self.problem.strict(
                entry_call.data, entry_call.result, entry_call.expected
            )
        return reason

    def checked(self, entry_call: EntryCall, result: Any) -> str:
        """Return why the official check alone refuses `result`, or "". An exception of the check,
        for a kind of result that it does not foresee, is a reason too."""
        try:
            if not self.entry.root:
                return self.problem.official(entry_call.expected, result)
            if self.entry.limits.on_gpu:
                result = to_device(result, "cuda")
            return self.problem.official((), result, copy.deepcopy(entry_call.data))
        except Exception as error:
            return plain(f"{UNCOMPARABLE}: {type(error).__name__}: {error}")

    def probe(self, case: Case, number: int) -> None:
        """Call the entry on the inputs of a probe, whose result is known, and name what it
        misses."""
        probe = self.problem.probes(case)[number]
        max_bytes = 2 * _bytes_of(probe.expected) + MOST_RESULT
        _, _, results = self.entry.call(packed(probe.data), max_bytes, in_place=False, timed=False)
        error = error_of(probe.expected, results[0]) if results else float("inf")
        if error > probe.bound:
            defect = f"misses {probe.label} (relative L2 {error:.2g}, bound {probe.bound:g})"
            self.verdict.strict = self.verdict.strict or defect
            self.verdict.named.append(defect)

    def name_failure(self, is_first_right: bool, entry_calls: list[EntryCall]) -> None:
        """Name a defect that the results of a failed case show: zeros, or the first call's output
        returned again."""
        results = [
            entry_call.result for entry_call in entry_calls if not _is_nothing(entry_call.result)
        ]
        first_tensors = [r if isinstance(r, torch.Tensor) else r[0] for r in results]
        if first_tensors and not any(tensor.any() for tensor in first_tensors):
            self.verdict.named.append("returns zeros")
        elif (
            is_first_right
            and len(first_tensors) > 1
            and first_tensors[0].shape == first_tensors[1].shape
            and torch.equal(first_tensors[0], first_tensors[1])
        ):
            self.verdict.named.append("returned the first call's output again: it keeps outputs")

    # ------------------------------------------------------------ times

    def time(self, first_call: EntryCall, second_call: EntryCall) -> None:
        """Time the first call's launches, with its own inputs and with the second call's; the
        verdict gets the times, or why there are none."""
        verdict = self.verdict
        if verdict.measured:
            verdict.us = [us for us in (first_call.us, second_call.us) if 0 < us < float("inf")]
            verdict.untimed = "" if len(verdict.us) == 2 else "its process told no time"
            return
        try:
            verdict.us = self.times(first_call, second_call)
        except NotTimed as reason:
            verdict.untimed = str(reason)

    def times(self, first_call: EntryCall, second_call: EntryCall) -> list[float]:
        """Return the time in us of the first call's launches on the case's inputs and on unseen
        ones; the latter alone where it is clearly longer. Raises NotTimed."""
        claim = first_call.claim
        if self.verdict.computed:
            names = counts(self.verdict.computed)
            raise NotTimed(f"torch computed, which has no time here: {names}")
        if claim is None or not claim.record.launches:
            raise NotTimed("no kernel was launched on the virtual GPU")
        if claim.record.flaw:
            raise NotTimed(f"its launches could not be recorded: {plain(claim.record.flaw)}")
        if first_call.case == second_call.case:
            raise NotTimed("its case has no seed: there are no inputs that it cannot know")
        us, result = self.replayed(claim, second_call)
        if reason := self.checked(second_call, result):
            raise NotTimed(
                "what it launched does not compute the result: on inputs that it had not seen, "
                f"{len(us)} launches give {reason}"
            )
        retime.check_least(us, result)
        for launch, time_us in zip(claim.record.launches, us, strict=True):
            name = plain(launch.kernel)
            self.verdict.kernels[name] = self.verdict.kernels.get(name, 0.0) + time_us
        case_us, result = self.replayed(claim, first_call)
        if reason := self.checked(first_call, result):
            raise NotTimed(f"what it launched gives another result again: {reason}")
        retime.check_least(case_us, result)
        case_total_us, unseen_total_us = sum(case_us), sum(us)
        if unseen_total_us > SLOWER * case_total_us:
            self.verdict.named.append(
                f"{case_total_us:.2f} us on the case's own inputs, "
                f"{unseen_total_us:.2f} on others, which count"
            )
            return [unseen_total_us]
        return [case_total_us, unseen_total_us]

    def replayed(self, claim: Claim, entry_call: EntryCall) -> tuple[list[float], Any]:
        """Return the us of each launch of `claim` on the inputs of `entry_call`, and the result.
        Raises NotTimed."""
        limits = self.entry.limits
        return retime.replay(
            claim,
            entry_call.packed.storages,
            self.problem.arch,
            limits.memory,
            limits.seconds,
            self.entry.walls,
        )


def _is_nothing(result: Any) -> bool:
    return isinstance(result, tuple) and not result


def _bytes_of(result: Any) -> int:
    tensors = [result] if isinstance(result, torch.Tensor) else result
    return sum(t.numel() * t.itemsize for t in tensors)
