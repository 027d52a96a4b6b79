"""The text that the predictor reads of a history: what the policy has seen, and a line that says how far it is.

Invariant: roots and prefixes have the same form, so a prefix of no turns is the root, character for character; the
outcome has no way in. Texts are pieces of the policy's context as it is, chat template included: without truncation a
history in pieces and the same history as one text become the same.

    [tools] prompt action_1 observation_1 ... action_t observation_t "\\n[turn t, turns left: n]"

Truncation, when tokens can be counted: the oldest observations are shortened first, then the oldest actions, and only
then the newest turn and the prompt. A shortened piece keeps both ends. Work is bounded by the token budget, not by the
length of the text: a text with more than `CHARS_PER_TOKEN` characters per token of the budget is not read whole.

In: decoded text. Out: text for `trace_alloc.predictor.Anchor`. Source: paper, E.6 (prompt and history as text); the
form and the truncation are design (trace.md 5).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

CountTokens = Callable[[str], int]

MAX_TOKENS = 8192
TOOLS_TOKENS = 1000  # a schema of the tools longer than this is left out
CHARS_PER_TOKEN = 16  # several times what text has; more characters than this per token of room aren't looked at
HEAD_SHARE = 0.25  # of what is kept of a text: the paper's prompts have up to 2048 tokens of these 8192
GAP = "\n[...]\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """One turn as the policy's context shows it: what was generated, and the environment's answer."""

    action: str
    observation: str = ""


def serialise(
    prompt: str,
    turns: Sequence[TurnText] = (),
    *,
    turn: int | None = None,
    turns_left: int | None = None,
    tools: str = "",
    count_tokens: CountTokens | None = None,
    max_tokens: int = MAX_TOKENS,
) -> str:
    """The text of the prefix with these turns; without any, of the root.

    `turn` is the number of turns so far, by default that of `turns`. Who has a history only as one text passes it as
    the `prompt`, with its `turn`. `turns_left` is how many may follow, None where there is no limit. `tools` is a
    schema that is not part of the prompt yet; one of more than `TOOLS_TOKENS` tokens is left out. With `count_tokens`
    the text has at most `max_tokens` tokens; without it, it is whole.

    Raises ValueError for a negative `turn` or `turns_left`, and when `max_tokens` has no room for the closing line.
    """
    reached = len(turns) if turn is None else turn
    if reached < 0 or (turns_left is not None and turns_left < 0):
        raise ValueError(f"turns are counted from 0 on, got turn {reached} and {turns_left} left")
    closing = f"\n[turn {reached}, turns left: {'unknown' if turns_left is None else turns_left}]"
    pieces = [prompt if _too_long(tools, count_tokens) else tools + prompt]
    for each in turns:
        pieces += [each.action, each.observation]
    if count_tokens is None:
        return "".join([*pieces, closing])
    return _fitted(pieces, closing, count_tokens, max_tokens)


def both_ends(text: str, n: int, gap: str = GAP) -> str:
    """The first and the last characters of a text, `n` in all with `HEAD_SHARE` of them at its head, and a gap."""
    if n >= len(text):
        return text
    head = int(n * HEAD_SHARE)
    return text[:head] + gap + text[len(text) - (n - head) :]


def _fitted(pieces: list[str], closing: str, count: CountTokens, max_tokens: int) -> str:
    """The pieces and the closing line, shortened until they have `max_tokens` tokens or fewer.

    Tokens of pieces don't quite add up to those of the whole, so the budget shrinks until the whole fits.
    """
    if sum(map(len, pieces)) <= max_tokens * CHARS_PER_TOKEN:
        whole = "".join([*pieces, closing])
        if count(whole) <= max_tokens:
            return whole
    budget = max_tokens - count(closing)
    if budget < 0:
        raise ValueError(f"{max_tokens} tokens have no room for the closing line {closing.strip()!r}: allow more")
    while True:
        whole = "".join([*_shortened_pieces(pieces, budget, count), closing])
        excess = count(whole) - max_tokens
        if excess <= 0 or budget == 0:
            return whole
        budget = max(0, budget - max(excess, budget // 16, 1))


def _shortened_pieces(pieces: list[str], budget: int, count: CountTokens) -> list[str]:
    """As much of the pieces as `budget` tokens hold, in the order in which they matter; the rest is empty.

    `pieces` are the prompt, then action and observation of each turn. A prompt that leaves no room gives up a quarter
    of it to the newest turn.
    """
    kept = [""] * len(pieces)
    n_turns = len(pieces) // 2
    prompt_room = budget - budget // 4 if n_turns else budget
    kept[0], size = _shortened(pieces[0], prompt_room, count)
    room = budget - size
    for index in _by_importance(n_turns):
        kept[index], size = _shortened(pieces[index], room, count)
        room = room - size if kept[index] == pieces[index] else 0  # what is older than a cut is gone
        if room <= 0:
            break
    return kept


def _by_importance(n_turns: int) -> list[int]:
    """Where the pieces of turns stand, most important first: the newest turn, older actions, older observations."""
    actions = [2 * k - 1 for k in range(n_turns, 0, -1)]
    observations = [2 * k for k in range(n_turns, 0, -1)]
    return actions[:1] + observations[:1] + actions[1:] + observations[1:]


def _shortened(text: str, room: int, count: CountTokens) -> tuple[str, int]:
    """The text, or as much of its ends as `room` tokens hold; and how many tokens that is."""
    n = min(len(text), room * CHARS_PER_TOKEN)
    while n > 0:
        short = both_ends(text, n)
        size = count(short)
        if size <= room:
            return short, size
        n = int(n * min(0.9, room / size))
    return "", 0


def _too_long(tools: str, count: CountTokens | None) -> bool:
    if not tools:
        return False
    if len(tools) > TOOLS_TOKENS * CHARS_PER_TOKEN:
        return True
    return count is not None and count(tools) > TOOLS_TOKENS
