"""The nine trackers as their users call them: a run is opened, each step is logged with the library's own call, the run is ended.

What a library captures by itself (system metrics, console, code) is switched off where its arguments allow it, because it is off in our
sinks, too: what is compared is the way of a point. Everything else is as the library has it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench.readers import Stored

Values = Mapping[str, float]


class Plain(NamedTuple):
    """An open run of a library."""

    log: Callable[[Values, int], Any]
    """Log the values of a step."""
    end: Callable[[], Any]
    """End the run as a script does; everything is durable when it returns."""


def _tensorboard(where: Stored) -> Plain:
    """``SummaryWriter.add_scalar`` for each value."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(where.output))

    def log(values: Values, step: int) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)

    return Plain(log, writer.close)


def _wandb(where: Stored) -> Plain:
    """``run.log``; the end waits for W&B's service, which writes the file: a script waits for it when the interpreter ends."""
    import wandb

    settings = wandb.Settings(console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True)
    run = wandb.init(project="bench", mode="offline", dir=str(where.output), settings=settings)

    def end() -> None:
        run.finish()
        wandb.teardown()

    return Plain(lambda values, step: run.log(dict(values), step=step), end)


def _trackio(where: Stored) -> Plain:
    """``trackio.log``."""
    import trackio

    trackio.init(project="bench", auto_log_gpu=False, auto_log_cpu=False, embed=False)
    return Plain(lambda values, step: trackio.log(dict(values), step=step), trackio.finish)


def _mlflow(where: Stored) -> Plain:
    """``mlflow.log_metrics``; a step is committed when the call returns."""
    import mlflow

    mlflow.create_experiment("bench", artifact_location=str(where.output))
    mlflow.set_experiment("bench")
    mlflow.start_run()
    return Plain(lambda values, step: mlflow.log_metrics(dict(values), step=step), mlflow.end_run)


def _comet(where: Stored) -> Plain:
    """``experiment.log_metrics``; the archive is written at the end."""
    import comet_ml

    captures = (
        "log_code", "log_graph", "parse_args", "log_git_metadata", "log_git_patch", "log_env_details", "auto_output_logging",
        "auto_param_logging", "auto_metric_logging", "auto_log_co2",
    )  # fmt: skip
    config = comet_ml.ExperimentConfig(offline_directory=str(where.output), **dict.fromkeys(captures, False))
    experiment: Any = comet_ml.start(project_name="bench", online=False, experiment_config=config)
    return Plain(lambda values, step: experiment.log_metrics(dict(values), step=step), experiment.end)


def _aim(where: Stored) -> Plain:
    """``run.track`` for each value, which is stored when the call returns."""
    from aim import Repo, Run

    repo = Repo.from_path(str(where.output), init=True)
    runs = [Run(repo=repo, system_tracking_interval=None, capture_terminal_logs=False, log_system_params=False)]

    def log(values: Values, step: int) -> None:
        for key, value in values.items():
            runs[0].track(value, name=key, step=step)

    def end() -> None:
        runs.pop().close()
        gc.collect()  # Aim closes its files when nobody has the run any more

    return Plain(log, end)


def _clearml(where: Stored) -> Plain:
    """``logger.report_scalar`` for each value."""
    from clearml import Task

    Task.set_offline(offline_mode=True)
    task: Any = Task.init(
        "bench",
        "bench",
        auto_connect_arg_parser=False,
        auto_connect_frameworks=False,
        auto_resource_monitoring=False,
        auto_connect_streams=False,
    )
    logger = task.get_logger()

    def log(values: Values, step: int) -> None:
        for key, value in values.items():
            logger.report_scalar(title=key, series="train", value=value, iteration=step)

    return Plain(log, task.close)


def _swanlab(where: Stored) -> Plain:
    """``swanlab.log``."""
    import swanlab

    settings = swanlab.Settings(
        interactive=False,
        probe=swanlab.Settings.Probe(
            hardware=False, runtime=False, requirements=False, conda=False, git=False, swanlab=False, monitor=False
        ),
        terminal=swanlab.Settings.Terminal(proxy_type="none"),
    )
    swanlab.init(project="bench", mode="offline", log_dir=str(where.output), settings=settings)
    return Plain(lambda values, step: swanlab.log(dict(values), step=step), swanlab.finish)


def _dvclive(where: Stored) -> Plain:
    """``live.log_metric`` for each value, then ``live.next_step``."""
    from dvclive import Live

    # In a repository it would be about Git, too.
    with contextlib.chdir("/"):
        live: Any = Live(dir=str(where.output), save_dvc_exp=False, dvcyaml=None, report=None)

    def log(values: Values, step: int) -> None:
        for key, value in values.items():
            live.log_metric(key, value, timestamp=True)
        live.next_step()

    return Plain(log, live.end)


LIBRARIES: dict[str, Callable[[Stored], Plain]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "mlflow": _mlflow,
    "comet_ml": _comet,
    "aim": _aim,
    "clearml": _clearml,
    "swanlab": _swanlab,
    "dvclive": _dvclive,
}
