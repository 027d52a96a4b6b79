"""Colours that people with any colour vision can tell apart (Okabe and Ito), and the meaning that each has here."""

BLUE, VERMILLION, GREEN, ORANGE = "#0072b2", "#d55e00", "#009e73", "#e69f00"
SKY, PURPLE, GREY, INK = "#56b4e9", "#cc79a7", "#8a8f98", "#1b1f24"
PALE = "#c9ced6"

RUNS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
DASHES = (None, "7 3", "2 3", "9 3 2 3", "4 2", "1 2")
KEPT, REJECTED = BLUE, VERMILLION
GENERATION, SIBLINGS, POOL = SKY, ORANGE, BLUE
FATES = {
    "trained": BLUE,
    "rejected": VERMILLION,
    "evicted": ORANGE,
    "filtered": PURPLE,
    "failed": INK,
    "skipped": PALE,
    "in_pool": SKY,
    "in_flight": GREY,
}
TIMES = {
    "waiting for rollouts": PALE,
    "experience": SKY,
    "update": BLUE,
    "weight sync": ORANGE,
    "rest": GREY,
}


def of_run(index: int) -> tuple[str, str | None]:
    """Colour and dash pattern of a run's line."""
    return RUNS[index % len(RUNS)], DASHES[index % len(DASHES)]
