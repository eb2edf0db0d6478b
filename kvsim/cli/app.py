"""The commands of the ``kvsim`` program and their options.

Everything heavy is imported by the command that needs it, so that ``--help`` is quick.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

# Options that several commands have.
ScenarioFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Scenario, a YAML file.", show_default=False)
]
Trace = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Replay this trace: JSON lines, plain or gzip.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Replace one value; may be repeated."),
]
CatalogWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT",
        help="Only rows with all of this in their name; case and dashes do not matter.",
        show_default=False,
    ),
]
RayCluster = Annotated[
    str | None,
    typer.Option(
        metavar="local|HOST:PORT", help="Workers of a Ray cluster, of this machine or a running one."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]

app = typer.Typer(name="kvsim", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        import kvsim

        typer.echo(f"kvsim {kvsim.__version__}")
        raise typer.Exit


@app.callback()
def kvsim_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Simulate vLLM's KV cache and scheduler: hit rates, capacity, preemption, latency."""


@app.command()
def run(
    file: ScenarioFile,
    trace: Trace = None,
    overrides: Overrides = None,
    record: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Also keep every row of steps or events; may be repeated."),
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:MS",
            help="Limit for goodput, in milliseconds: ttft, tpot or e2e, such as ttft:2000; may be repeated.",
        ),
    ] = None,
    results_dir: Annotated[
        Path,
        typer.Option("--out", "-o", "--results-dir", metavar="DIR", help="Where the results folder goes."),
    ] = Path("results"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the path of the results.")] = False,
    compare_routers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Run it once under each of these routing policies and show them side by side; parameters "
            "as NAME:PARAMETER=VALUE.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Worker processes for cells and compared routers (one for each core, if that is quicker).",
        ),
    ] = None,
    ray: RayCluster = None,
) -> None:
    """Run one scenario and write its results folder."""
    from kvsim.cli.run import run_command

    words = (overrides or [], record or [], goodput or [])
    code = run_command(file, trace, *words, results_dir, quiet, compare_routers, workers, ray)
    raise typer.Exit(code)


@app.command()
def sweep(
    file: ScenarioFile,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUES",
            help="Values of a key: A,B,C or FROM:TO:STEP, FROM:TO:*FACTOR, FROM:TO:logN; may be repeated. "
            "Added to the file's sweep: block; replaces the same key there.",
        ),
    ] = None,
    points: Annotated[
        list[str] | None,
        typer.Option("--point", metavar="KEY=VALUE;KEY=VALUE", help="One point of a list; may be repeated."),
    ] = None,
    sample: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND:N", help="Draw N points instead of all: latin:40 or random:40."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="Seed of --sample (0).")] = None,
    find: Annotated[
        list[str] | None,
        typer.Option(
            metavar="max:KEY",
            help="Search the highest value that keeps every --subject-to; min:KEY the lowest. "
            "KEY=LOW:HIGH bounds it.",
        ),
    ] = None,
    subject_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT", help="Such as ttft_p99<=2s, tpot_p99<=50ms, hit_rate>=80%; may be repeated."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="How near --find comes, relative (0.01; whole numbers exactly)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder of the sweep (results/NAME-sweep)."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Worker processes (one for each core, if that is quicker)."),
    ] = None,
    ray: RayCluster = None,
    trace: Trace = None,
    max_points: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Refuse more points than this (10,000).")
    ] = None,
    ignore_block: Annotated[
        bool, typer.Option("--ignore-block", help="Without the sweep: block of the file.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away the points that the folder holds.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the path of the folder.")] = False,
) -> None:
    """Run one scenario with many values of its keys, in parallel, and write a table.

    Every point sees the same requests. Points are kept as they finish: after an interrupt the same
    command goes on. A point that fails is a row with its error.
    """
    from kvsim.cli.sweep import only, split_limits, sweep_command

    words = {
        "set_": axes or [],
        "points": points or [],
        "sample": only(sample or [], "--sample"),
        "seed": seed,
        "find": only(find or [], "--find"),
        "subject_to": split_limits(subject_to or []),
        "tolerance": tolerance,
        "max_points": max_points,
    }
    options = {"workers": workers, "ray": ray, "fresh": fresh}
    code = sweep_command(file, trace, words, out, options, ignore_block=ignore_block, quiet=quiet)
    raise typer.Exit(code)


@app.command()
def steps(
    file: ScenarioFile,
    first: Annotated[int, typer.Option("--from", metavar="N", min=1, help="First step to show.")] = 1,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="How many steps to show.")] = 10,
    blocks: Annotated[
        bool, typer.Option("--blocks", help="Also the block map and the free queue after each step.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line for each step, with complete lists.")
    ] = False,
    trace: Trace = None,
    overrides: Overrides = None,
) -> None:
    """Show the batch of each engine step as the attention backend sees it.

    Slot mapping, block tables, sequence lengths, and what the step does to requests and blocks.
    Nothing is written; the run is only simulated as far as the last step shown.
    """
    from kvsim.cli.steps import steps_command

    steps_command(file, trace, overrides or [], first, count, blocks=blocks, as_json=as_json)


@app.command()
def plot(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN|SWEEP", help="Folder that a run or a sweep wrote.", show_default=False),
    ],
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Of a run: memory, timeseries, cdf, blocks, replicas. Of a sweep: lines, heatmap, pareto, "
            "effects, routers.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A .png, .svg or .pdf; else ./FOLDER-KIND.png."),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Swept key across; of pareto a figure, such as ttft_p99."),
    ] = None,
    y: Annotated[
        str | None, typer.Option(metavar="NAME", help="Figure upwards; of a heatmap the other swept key.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="KEY", help="Swept key told by colour; of a heatmap by panel.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="heatmap, lines, effects: a figure of the summary, such as hit_rate or ttft_p99. cdf: ttft, "
            "tpot, e2e, queue_time, block_age, reuse_gap. timeseries: running, waiting, kv_usage, hit_rate, "
            "preemptions, tokens. replicas: requests, hit_rate, kv_usage, running, ttft_p99, prompt_tokens, "
            "busy_time, preemptions. Of a run and of routers several with commas.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Of a sweep: only points with this value of a swept key; may be repeated.",
        ),
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="timeseries: seconds; blocks: steps, from 1.")
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="timeseries, cdf: only this replica, by its name or number."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="blocks, reuse_gap: where the run's trace lies, if it was moved."),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="In place of the usual title.")] = None,
    dpi: Annotated[int, typer.Option(metavar="N", min=30, max=1200, help="Pixels an inch.")] = 150,
) -> None:
    """Draw a run or a sweep; equal results give equal files.

    timeseries wants recorded steps (kvsim run --record steps), cdf --metric block_age or reuse_gap
    recorded events; blocks simulates the run once more as far as needed.
    """
    from kvsim.cli.plot import PlotOptions, plot_command

    asked = PlotOptions(x, y, by, metric, window, replica, trace, title, tuple(where or ()) or None)
    plot_command(folder, kind, output, asked, dpi)


@app.command()
def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DIR_OR_FILE...", help="Recorded vLLM traces.", show_default=False),
    ],
) -> None:
    """Replay recorded vLLM traces through kvsim's core and compare all that is recorded.

    Every field of every step, except `ops`, the order of calls inside vLLM's block pool.
    """
    from kvsim.cli.verify import verify_command

    raise typer.Exit(verify_command(paths))


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
def capacity(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL [VLLM FLAGS] | -- vllm serve MODEL ...",
            help="Catalog name or path to a config.json, and flags as vllm serve takes them.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="GPU, a name of kvsim gpus.")] = None,
    gpu_memory_gib: Annotated[
        float | None, typer.Option(metavar="GIB", help="Memory of the card as the driver shows it.")
    ] = None,
    used_by_others_gib: Annotated[
        float, typer.Option(metavar="GIB", help="What other processes hold of the card.")
    ] = 0.0,
    vllm_version: Annotated[
        str | None, typer.Option(metavar="0.N", help="vLLM release, 0.6 to 0.33 (0.33 if absent).")
    ] = None,
    as_json: AsJson = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FLAG=VALUES", help="Table over values, A,B,C or FROM:TO:STEP; may be repeated."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the sweep, a PNG, SVG or PDF.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Explain this start-up log; it names the flags.")
    ] = None,
    save_profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --log: keep the observed parts.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use the parts that --save-profile kept.")
    ] = None,
    evaluate: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Compare with published start-up logs instead.")
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="With --evaluate: every row that is predicted.")
    ] = False,
) -> None:
    """How many tokens of KV cache fit, and why exactly that many.

    Prints the lines that vLLM would print, the bridge from the card's memory to tokens, and a range.
    A whole command line may follow after --: kvsim capacity --gpu H100 -- vllm serve MODEL ...
    """
    from kvsim.cli.capacity import Card, Modes, capacity_command, evaluate_command, log_command

    card = Card(gpu, gpu_memory_gib, used_by_others_gib, vllm_version, profile)
    modes = Modes(words or [], card, sweep or [], plot, log, save_profile, evaluate, rows)
    modes.check()
    if evaluate is not None:
        evaluate_command(evaluate, every=rows, as_json=as_json)
    elif log is not None:
        log_command(log, words or [], card, save_profile, as_json=as_json)
    else:
        capacity_command(words or [], card, sweep or [], plot, as_json=as_json)


@app.command()
def models(words: CatalogWords = None, as_json: AsJson = False) -> None:
    """List the models of the catalog, with sources."""
    from kvsim.cli.catalog import models_command

    models_command(words or [], as_json=as_json)


@app.command()
def gpus(words: CatalogWords = None, as_json: AsJson = False) -> None:
    """List the GPUs of the catalog, with sources."""
    from kvsim.cli.catalog import gpus_command

    gpus_command(words or [], as_json=as_json)


@app.command()
def schema(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it there instead of printing it."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference page of the docs.")] = False,
) -> None:
    """What a scenario file may hold: JSON Schema for editors, or the reference as Markdown."""
    from kvsim.cli.schema import schema_command

    schema_command(output, markdown=markdown)


@app.command()
def validate(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Measured runs, or one run's requests; CSV.", show_default=False),
    ],
    gpu: Annotated[str | None, typer.Option(metavar="GPU", help="Only rows of this GPU.")] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="ROWS", help="Only these rows: numbers, ranges, ids; 1,4-9,fae422ae."),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What served the requests of one run.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Trace with the prompts of one run, row by row.")
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Picture of one run over time: .png, .svg, .pdf."
        ),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Also fit host times on the rows, with held-out errors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate measured runs and print predicted beside measured latencies.

    A table of runs: each row becomes a scenario, with vLLM's defaults for flags that it does not state.
    A file of one run's requests (and its counters over time): replayed on the engine of --scenario.
    """
    from kvsim.cli.validate import validate_command

    validate_command(
        file,
        gpu=gpu,
        rows=rows,
        scenario=scenario,
        trace=trace,
        overrides=overrides or [],
        output=output,
        fit=fit,
        as_json=as_json,
    )


calibrate = typer.Typer(
    help="Where step times come from: measure, fit, score and show kernel times.", no_args_is_help=True
)
app.add_typer(calibrate, name="calibrate")

Tables = Annotated[
    list[Path],
    typer.Argument(
        metavar="TABLE...", help="Measured times, .parquet or .csv (docs/cost.md).", show_default=False
    ),
]
OneGpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="Only rows of this GPU.")]


@calibrate.command()
def measure(
    heads: Annotated[
        list[str] | None,
        typer.Option(metavar="Q/KV/SIZE", help="Heads on one GPU, such as 32/8/128; may be repeated."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="All shapes of this catalog model; may be repeated."),
    ] = None,
    tp: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Split each --model over N GPUs (1 if absent); may be repeated."),
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="bfloat16 (if absent), fp8; may be repeated.")
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="prefill, cached, decode, mixed, encoder, gemm, copy or all_reduce; may be repeated.",
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Only kernels with this word in their name; may be repeated."),
    ] = None,
    l2: Annotated[
        str, typer.Option("--l2", metavar="STATE", help="State of the L2 cache: hot, cold or both.")
    ] = "both",
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop in time, such as 8m; the most telling points are first."),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="cuda, cuda:N, or cpu to try the program out.")
    ] = "cuda",
    out: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FOLDER", help="Where the tables go, and are gone on with."),
    ] = Path("results/measured"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the folder.")] = False,
) -> None:
    """Time attention, linear layers, copies and all-reduce on the GPU at hand, with torch.

    Writes tables that calibrate fit reads. The same command goes on where an earlier one stopped.
    """
    from kvsim.cli.measure import measure_command

    raise typer.Exit(
        measure_command(
            heads or [],
            model or [],
            tp or [],
            dtype or ["bfloat16"],
            operation or [],
            kernel or [],
            l2,
            budget,
            device,
            out,
            quiet,
        )
    )


@calibrate.command()
def fit(
    tables: Tables,
    gpu: OneGpu = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="Where several kernels were timed, those whose name holds this; may be repeated.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The calibration, or a folder for several GPUs."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the paths.")] = False,
) -> None:
    """Fit a calibration to tables of measured kernel times; a quarter of the rows is left out."""
    from kvsim.cli.calibrate import fit_command

    fit_command(tables, gpu, kernel or [], output, quiet=quiet)


@calibrate.command(name="evaluate")
def evaluate_tables(
    tables: Tables,
    gpu: OneGpu = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score this one, as fit writes it.")
    ] = None,
    beyond: Annotated[
        bool, typer.Option(help="Also refit on the small half and score the large end.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, one object a line.")] = False,
) -> None:
    """Score a calibration on tables of measured kernel times, left-out and fitted rows apart."""
    from kvsim.cli.calibrate import evaluate_command

    evaluate_command(tables, gpu, calibration, beyond=beyond, as_json=as_json)


@calibrate.command()
def show(
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="A name of kvsim gpus.", show_default=False)],
    tables: Annotated[
        list[Path] | None, typer.Argument(metavar="[TABLE...]", help="Measured times to draw beside.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw this one, as fit writes it.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="A PNG, SVG or PDF.")
    ] = None,
) -> None:
    """Draw a GPU's modelled times against measured ones and the roofline; list where they come from."""
    from kvsim.cli.calibrate import show_command

    show_command(gpu, tables or [], calibration, output)


def run_app(args: list[str] | None) -> Any:
    """Parse and run; the exit code or None. Raises whatever the command raises."""
    return typer.main.get_command(app).main(args, prog_name="kvsim", standalone_mode=False)
