"""All benchmarks in turn, and the tables of docs/benchmarks.md and docs/evidence.md from what they measured.

    python bench/run_all.py [--only NAME ...] [--folder FOLDER] [--tables]

Every benchmark runs as the command that its page names, with `--json FOLDER/NAME.json`. A table of a page stands
between `<!-- NAME -->` and `<!-- end -->` and is what the benchmark prints, made anew from that file; those without a
file leave their tables as they are. `--tables` runs nothing. What takes hours runs only if it is named; the others
take 26 minutes on two cores. Keep the machine quiet.
"""

import argparse
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

DOCS = ROOT / "docs"


class Benchmark(NamedTuple):
    """Its flags, the page of docs/ with its table, and whether it takes hours."""

    flags: tuple[str, ...] = ()
    page: str = "benchmarks.md"
    hours: bool = False


# Uniform lengths and upstream's partial rollout would double its 19 minutes.
STEP_TIME = "--settings tool --ways sync async unfiltered pace-effective pace-raw --updates 10 --drop 3"
BENCHMARKS = {
    "allocation": Benchmark(("--instances", "5000")),
    "pool": Benchmark(("--rounds", "1000")),
    "weight_sync": Benchmark(),
    "engine_start": Benchmark(("--rounds", "1")),
    "episodes": Benchmark(page="agents.md"),
    "claims_simulated": Benchmark(page="evidence.md"),
    "step_time": Benchmark(tuple(STEP_TIME.split())),
    "claims_learnt": Benchmark(page="evidence.md", hours=True),
    "trace_budget": Benchmark(page="evidence.md", hours=True),
}


def command(name: str) -> list[str]:
    """A benchmark's command line, as its page names it."""
    return ["python", f"bench/{name}.py", *BENCHMARKS[name].flags]


def run(name: str, file: Path) -> bool:
    """Runs one; False if it failed, which its output says."""
    print(f"\n== {' '.join(command(name))}", flush=True)
    began = time.monotonic()
    done = subprocess.run([sys.executable, *command(name)[1:], "--json", str(file)], cwd=ROOT, check=False)
    print(f"== {name}: exit code {done.returncode} after {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def with_table(page: str, name: str, result: Mapping[str, Any]) -> str:
    """The page with a benchmark's new table. Raises ValueError if it has no place for one."""
    shown = importlib.import_module(f"bench.{name}").report(result)
    block = f"<!-- {name} -->\n```\n$ {' '.join(command(name))}\n{shown}\n```\n<!-- end -->"
    changed, n_places = re.subn(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _: block, page, flags=re.DOTALL)
    if n_places != 1:
        raise ValueError(f"{n_places} places `<!-- {name} -->` ... `<!-- end -->` in the page: there must be one")
    return changed


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is asked for and writes the tables; the exit code says whether a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=BENCHMARKS, help="benchmarks (default: all that don't take hours)"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bench", help="where the numbers go")
    parser.add_argument("--tables", action="store_true", help="run nothing; write the tables of the folder's numbers")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    names = args.only or [name for name, benchmark in BENCHMARKS.items() if args.tables or not benchmark.hours]
    files = {name: args.folder.resolve() / f"{name}.json" for name in names}
    failed = [] if args.tables else [name for name, file in files.items() if not run(name, file)]
    measured = [name for name, file in files.items() if file.exists() and name not in failed]
    for name in measured:
        page = DOCS / BENCHMARKS[name].page
        page.write_text(with_table(page.read_text(), name, json.loads(files[name].read_text())))
    print(f"tables: {', '.join(measured) or 'none'}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
