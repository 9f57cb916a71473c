"""Find the experiment and the run in MLflow, or make them."""

from __future__ import annotations

import getpass
import json
import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE, MLFLOW_SOURCE_TYPE, MLFLOW_USER

from accelbus.tracking import RunInfo
from accelbus_sinks._config import shorten, text_of
from accelbus_sinks._mlflow_names import LIMITS
from accelbus_sinks._mlflow_places import artifact_location

logger = logging.getLogger(__name__)

RUN_ID_TAG: Final = "accelbus.run_id"
"""Leads from our run to MLflow's."""
DEFAULT_EXPERIMENT: Final = "Default"


class Start:
    """How the run is to be opened; the arguments of `MLflowTracker`, environment and all.

    Args:
        arguments: those of the tracker.
        environ: its variables beat them.

    Raises:
        ValueError: the tags are no mapping.
    """

    def __init__(self, arguments: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        nested = environ.get("MLFLOW_NESTED_RUN")
        self.experiment_name: str | None = environ.get("MLFLOW_EXPERIMENT_NAME") or arguments["experiment_name"]
        self.run_id: str | None = environ.get("MLFLOW_RUN_ID") or arguments["run_id"]
        self.tags = _mapping_of_tags(environ.get("MLFLOW_TAGS") or arguments["tags"])
        self.is_nested: bool = nested.strip().lower() in {"1", "true", "yes", "on"} if nested is not None else bool(arguments["nested_run"])
        self.run_name: str | None = arguments["run_name"]
        self.description: str | None = arguments["description"]
        self.logging_dir: str | os.PathLike[str] | None = arguments["logging_dir"]

    def open(self, client: MlflowClient, info: RunInfo, known_run_id: str | None) -> Run:
        """Return the run to log to: the one that was asked for, the one that an earlier process logged to, or a new one.

        Args:
            client: of the server.
            info: of our run.
            known_run_id: MLflow's run id from the cursor.

        Raises:
            RuntimeError: somebody has deleted the run.
            MlflowException: the server cannot be reached, or refuses.
        """
        run = client.get_run(self.run_id) if self.run_id else self._known(client, known_run_id) or self._found_or_made(client, info)
        run_id = run.info.run_id
        if run.info.lifecycle_stage != "active":
            raise RuntimeError(f"run {run_id} of MLflow is deleted; bring it back with: mlflow runs restore --run-id {run_id}")
        if run.info.status != "RUNNING":
            client.update_run(run_id, status="RUNNING")
        return client.get_run(run_id)

    def run_tags(self, info: RunInfo) -> dict[str, str]:
        """Return the tags of the run; those the user gave last."""
        tags = {MLFLOW_SOURCE_TYPE: "LOCAL"} | dict.fromkeys(info.tags, "true")
        if user := _user():
            tags[MLFLOW_USER] = user
        if note := self.description or info.notes:
            tags[MLFLOW_RUN_NOTE] = note
        if info.group:
            tags["accelbus.group"] = info.group
        if info.run_id:
            tags[RUN_ID_TAG] = info.run_id
        tags |= self.tags
        if self.is_nested and MLFLOW_PARENT_RUN_ID not in tags:
            logger.warning("nested_run has no effect: the parent is another process's run; name it with tags={%r: …}", MLFLOW_PARENT_RUN_ID)
        return {name: shorten(value, LIMITS.tag_value) for name, value in tags.items() if name != MLFLOW_RUN_NAME}

    def _known(self, client: MlflowClient, run_id: str | None) -> Run | None:
        if run_id is None:
            return None
        try:
            return client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            logger.warning("run %s is not in %s any more: what is delivered from here on goes to another run", run_id, client.tracking_uri)
            return None

    def _found_or_made(self, client: MlflowClient, info: RunInfo) -> Run:
        experiment_id = self._experiment(client, info)
        if info.run_id:
            # Ours, of a process that died before its first cursor. Run ids have no quotes.
            found = client.search_runs([experiment_id], f"tags.`{RUN_ID_TAG}` = '{info.run_id}'", ViewType.ALL)
            if found:
                return min(found, key=lambda run: (run.info.lifecycle_stage != "active", run.info.start_time))
        name = self.run_name or self.tags.get(MLFLOW_RUN_NAME) or info.name or None
        return client.create_run(experiment_id, tags=self.run_tags(info), run_name=name)

    def _experiment(self, client: MlflowClient, info: RunInfo) -> str:
        name = shorten(self.experiment_name or info.project or DEFAULT_EXPERIMENT, LIMITS.experiment_name)
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            location = artifact_location(client.tracking_uri, name, self.logging_dir, os.environ, info)
            try:
                return str(client.create_experiment(name, artifact_location=location))
            except MlflowException as error:
                # Another run was quicker.
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise RuntimeError(f"experiment {name!r} can be neither made nor found")
        if experiment.lifecycle_stage != "active":
            logger.warning("experiment %r was deleted; it is restored", name)
            client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)


def _mapping_of_tags(tags: Mapping[str, Any] | str | None) -> dict[str, str]:
    if tags is None:
        return {}
    try:
        found = json.loads(tags) if isinstance(tags, str) else tags
        return {str(name): text_of(value) for name, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"tags={tags!r} of MLflow: expected a mapping or its JSON ({error})") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in containers
        return ""
