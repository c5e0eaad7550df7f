"""What the engine is set to, and how long one of its steps takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal, NamedTuple

from monitor.simulate.settings import Count, Natural, NotNegative, Positive, Seconds, Share


class Speeds(NamedTuple):
    """What is left of the speed of a cool, unhindered card: 1.0 = all of it."""

    prefill: float
    decode: float


@dataclass(slots=True)
class EngineConfig:
    """Settings of the engine; all but the sizes of its cache may be changed while it runs. Names of
    vLLM's flags where it has one.

    The default costs are those of an 8B model in bf16 on an H100: 16 GB of weights read per decode
    step at some 2.1 TB/s, 128 kB of keys and values per token of context (Llama 3 8B: 32 layers, 8
    key-value heads of 128), prefill at 40 % of 989 TFLOPS.
    """

    # vLLM's default for the API server on cards of 70 GB and more (engine/arg_utils.py)
    max_num_batched_tokens: Count = 8192
    max_num_seqs: Count = 1024
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    max_num_queued_reqs: Count | None = None  # None, as vLLM has it: the queue has no end
    enable_prefix_caching: bool = True
    block_size: Count = 16
    num_gpu_blocks: Count = 27_000  # takes effect at the next restart
    num_speculative_tokens: Natural = 0
    spec_acceptance: Share = 0.7  # chance that a drafted token is taken, if the ones before it were
    # costs at nominal clocks, in seconds unless the name says otherwise
    prefill_tok_s: Positive = 25_000.0
    # reading the weights: once a step, however many sequences share it
    decode_base_s: Positive = 0.0075
    decode_per_seq_s: Seconds = 30e-6
    decode_per_context_s: Seconds = 6.5e-8  # per token of context of each sequence
    draft_share: Share = 0.06  # of decode_base_s, for each drafted token
    host_s: Seconds = 0.0004  # the processor's part of a step, in which the card waits
    # compilation at the first answer per process start and parameter set; 4 to 20 s seen on vLLM
    # 0.32 CPU
    cold_s: Seconds = 0.0
    # what is wrong with it
    frozen: bool = False  # no step ever ends
    dead: bool = False
    asleep: bool = False  # requests wait without an error
    # a slower kernel: all work of the card takes so many times longer
    kernel_slow_factor: Positive = 1.0
    # the same for prefill only: an attention backend that fell back
    prefill_slow_factor: Positive = 1.0
    host_delay_s: Seconds = 0.0  # added to the processor's part of every step
    uptime_decay_per_h: NotNegative = 0.0  # 0.02: after ten hours steps take 1.2 times as long
    # this start of the process got a slow state; a restart resets it
    slow_start_factor: Positive = 1.0

    @property
    def tokens_per_draft(self) -> float:
        """Tokens that a step brings a sequence on average: one, and those of the drafted ones that
        are taken.
        """
        return sum(self.spec_acceptance**taken for taken in range(self.num_speculative_tokens + 1))


class StepBatch(NamedTuple):  # a tuple, as there is one for each step
    """What one step has to do."""

    prefill_tokens: int
    decodes: int  # sequences that get a token
    context_tokens: int  # of those sequences, together
    drafted_tokens: int  # by speculation, for all of them


class StepCost(NamedTuple):
    """Seconds of one step: on the card, of which for prompts, and on the host."""

    device_s: float
    prefill_s: float
    host_s: float

    @property
    def duration_s(self) -> float:
        """From the begin of the step to its end."""
        return self.device_s + self.host_s

    @property
    def busy(self) -> float:
        """Share of the step in which the card works, 0..1."""
        return self.device_s / (self.device_s + self.host_s) if self.device_s else 0.0

    @property
    def prefill_share(self) -> float:
        """Share of the card's work that goes to prompts, 0..1."""
        return self.prefill_s / self.device_s if self.prefill_s else 0.0


class StepRates(NamedTuple):
    """Seconds of the card for each thing that a step may have to do, and of the host for the step,
    as it is now.
    """

    prompt_s: float  # a token of a prompt
    # reading the weights, which goes on while a prompt is computed, so that the longer of the two
    # counts (roofline)
    read_s: float
    sequence_s: float  # a sequence that gets a token, or a drafted token
    context_s: float  # a token of their context
    draft_s: float  # a drafted token, however many sequences there are
    host_s: float


def rates_of(config: EngineConfig, speeds: Speeds, uptime_s: float) -> StepRates:
    """At these speeds, so long after the start of the process."""
    slow = (
        config.kernel_slow_factor
        * config.slow_start_factor
        * (1.0 + config.uptime_decay_per_h * uptime_s / 3600)
    )
    decode = slow / speeds.decode
    return StepRates(
        prompt_s=slow * config.prefill_slow_factor / (config.prefill_tok_s * speeds.prefill),
        read_s=config.decode_base_s * decode,
        sequence_s=config.decode_per_seq_s * decode,
        context_s=config.decode_per_context_s * decode,
        draft_s=config.draft_share * config.decode_base_s * decode,
        host_s=config.host_s + config.host_delay_s,
    )


def fitting(
    most: int, first_s: float, growth: float, start_s: float, limit_s: float
) -> tuple[int, float]:
    """How many steps end by `limit_s`, at most so many, each longer than the one before it by
    `growth`; and when the last of them ends.
    """
    steps, room_s = most, limit_s - start_s
    if room_s < inf:
        # steps·first + growth·steps·(steps - 1)/2 = room, solved for steps
        mean_s = first_s - growth / 2
        steps = (
            min(most, int(2 * room_s / (mean_s + sqrt(mean_s * mean_s + 2 * growth * room_s))))
            if room_s > 0
            else 0
        )
    return steps, start_s + steps * first_s + growth * steps * (steps - 1) / 2


def cost_of(batch: StepBatch, config: EngineConfig, rates: StepRates) -> StepCost:
    """How long the step takes."""
    prefill_s = batch.prefill_tokens * rates.prompt_s
    device_s = (
        max(rates.read_s, prefill_s)
        + batch.decodes * rates.sequence_s
        + batch.context_tokens * rates.context_s
    )
    if config.num_speculative_tokens and batch.decodes:
        device_s += (
            batch.drafted_tokens * rates.sequence_s + config.num_speculative_tokens * rates.draft_s
        )
    return StepCost(device_s, prefill_s, rates.host_s)
