"""A tracker class that lies beside the training script."""

from __future__ import annotations

from tests.support.job import Job

TRACKER = """
from accelbus.tracking import GeneralTracker

class Lines(GeneralTracker):
    name = "lines"
    requires_logging_directory = True

    def __init__(self, run_name, logging_dir):
        super().__init__()
        self.path = f"{logging_dir}/lines.txt"

    @property
    def tracker(self):
        return self.path

    def log(self, values, step=None):
        with open(self.path, "a") as file:
            file.write(f"{step} {values['loss']}\\n")
"""


def test_a_class_beside_the_script_is_found_by_its_worker(job: Job) -> None:
    """The worker's search path ends with the trainer's, so nothing installed is hidden by what lies there."""
    (job.root / "my_tracker.py").write_text(TRACKER)
    (job.root / "json.py").write_text("raise SystemError('hides the real one')")
    (rank,) = job.run(
        """
        sys.path.append(sys.path.pop(0))
        import accelbus
        from my_tracker import Lines
        accelbus.register_tracker_class(Lines)
        with accelbus.init(log_with="lines") as run:
            run.log({"loss": 0.5}, step=3)
        """
    )
    assert rank.process.returncode == 0, rank.stderr
    assert next(job.run_dir.rglob("lines.txt")).read_text() == "3 0.5\n"
