"""Who a process is: all ranks agree, two launches never do."""

import itertools
import os
import sys
import types
from typing import Any

import pytest

from accelbus import host
from accelbus.client import identity
from accelbus.client.identity import Identity, identify
from accelbus.config import Settings
from accelbus.errors import ConfigurationError

SETTINGS = Settings(project="My Project")


class Node:
    """One fake host: processes identify themselves on it, as children of a launcher unless they say otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Any) -> None:
        self._monkeypatch = monkeypatch
        self._directory = directory
        self._pids = itertools.count(5000)
        self.programs: dict[int, str] = {}
        self.dead: set[int] = set()

    def launcher(self, program: str = "launcher") -> tuple[int, int]:
        pid = next(self._pids)
        self.programs[pid] = program
        return pid, pid * 10

    def process(self, environ: dict[str, Any], launcher: tuple[int, int], *, pid: int | None = None, **settings: Any) -> Identity:
        pid = pid or next(self._pids)
        patch = self._monkeypatch
        patch.setattr(host, "private_directory", lambda: self._directory)
        patch.setattr(host, "process_start_time", lambda pid: None if pid in self.dead else pid * 10)
        patch.setattr(host, "command_name", lambda pid: self.programs.get(pid, "python"))
        patch.setattr(identity, "launcher_process", lambda _: launcher)
        patch.setattr(identity, "_this_process", lambda: (pid, pid * 10))
        ordinal = settings.pop("ordinal", 0)
        return identify(
            {key: str(value) for key, value in environ.items()}, settings=Settings(project="My Project", **settings), ordinal=ordinal
        )

    def launch(self, environs: list[dict[str, Any]], launcher: tuple[int, int] | None = None, **settings: Any) -> list[Identity]:
        launcher = launcher or self.launcher()
        return [self.process(environ, launcher, **settings) for environ in environs]


@pytest.fixture
def node(monkeypatch, tmp_path):
    return Node(monkeypatch, tmp_path)


@pytest.fixture
def other_node(monkeypatch, tmp_path_factory):
    return Node(monkeypatch, tmp_path_factory.mktemp("other"))


def torchrun(world=2, local=None, *, node_rank=0, **more):
    local = local or world
    return [
        {
            "TORCHELASTIC_RUN_ID": "none", "RANK": node_rank * local + rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": local,
            "GROUP_RANK": node_rank, "TORCHELASTIC_RESTART_COUNT": 0, "MASTER_ADDR": "localhost", "MASTER_PORT": 29500, **more,
        }
        for rank in range(local)
    ]  # fmt: skip


def by_hand(world=2, **more):
    return [{"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": 29500, **more} for rank in range(world)]


def slurm(world=4, *, node_id=0, per_node=2, step=0, job=77, **more):
    return [
        {
            "SLURM_JOB_ID": job, "SLURM_STEP_ID": step, "SLURM_PROCID": node_id * per_node + task, "SLURM_NTASKS": world, "SLURM_LOCALID": task,
            "SLURM_NODEID": node_id, "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{world // per_node})", **more,
        }
        for task in range(per_node)
    ]  # fmt: skip


def openmpi(world=2, local=None, **more):
    local = local or world
    return [
        {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": world,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": local,
            **more,
        }
        for rank in range(local)
    ]


def hydra(world=2, **more):
    return [{"PMI_RANK": rank, "PMI_SIZE": world, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": world, **more} for rank in range(world)]


def run_ids(*identities: list[Identity]) -> set[str]:
    return {found.run_id for found in itertools.chain(*identities)}


def tokens(*identities: list[Identity]) -> set[bytes]:
    return {found.launch for found in itertools.chain(*identities)}


ONE_NODE = {"torchrun": torchrun(), "by hand": by_hand(), "slurm": slurm(2), "open mpi": openmpi(), "hydra": hydra()}


@pytest.mark.parametrize("environs", ONE_NODE.values(), ids=ONE_NODE)
def test_the_ranks_of_a_launch_agree(node, environs):
    """Each rank finds the same run and launch token, and its own place."""
    found = node.launch(environs)
    assert len(run_ids(found)) == len(tokens(found)) == 1
    assert [(who.rank, who.world_size, who.local_rank, who.local_world_size) for who in found] == [(0, 2, 0, 2), (1, 2, 1, 2)]
    assert len(found[0].launch) == 16


@pytest.mark.parametrize("environs", ONE_NODE.values(), ids=ONE_NODE)
def test_a_second_launch_with_the_same_environment_is_another_run(node, environs):
    """A reused MASTER_PORT, a rendezvous id `none`, a step that runs two programs: none of it joins two launches."""
    assert len(run_ids(node.launch(environs), node.launch(environs))) == 2


@pytest.mark.parametrize("environs", ONE_NODE.values(), ids=ONE_NODE)
def test_an_explicit_run_id_is_used_as_it_is(node, environs):
    """The launches still have tokens of their own, or the second would look like the first."""
    first, second = node.launch(environs, run_id="mine"), node.launch(environs, run_id="mine")
    assert run_ids(first, second) == {"mine"}
    assert len(tokens(first, second)) == 2


@pytest.mark.parametrize("environs", ONE_NODE.values(), ids=ONE_NODE)
def test_a_second_run_of_the_same_process_is_another_run_on_every_rank(node, environs):
    """Ranks count their runs alike, so they still agree; the same question has the same answer."""
    launcher = node.launcher()

    def asked(ordinal):
        return [node.process(environ, launcher, pid=100 + rank, ordinal=ordinal) for rank, environ in enumerate(environs)]

    assert asked(0) == asked(0)
    assert len(run_ids(asked(0), asked(1))) == 2
    assert len(run_ids(asked(1))) == 1


def test_the_run_id_names_the_project(node):
    """People recognise their runs."""
    [who] = node.launch([{}])
    assert who.run_id.startswith("my-project-")
    assert len(who.run_id) == len("my-project-") + 8


def test_without_a_launcher_every_process_is_a_run(node):
    """A notebook or a plain script shares its run with nobody."""
    launcher = node.launcher("bash")
    first, second = node.launch([{}], launcher), node.launch([{}], launcher)
    assert len(run_ids(first, second)) == len(tokens(first, second)) == 2
    assert first[0][1:5] == (0, 1, 0, 1)
    assert first[0].launcher == "none"


# torchrun


def test_an_elastic_restart_keeps_the_run_and_changes_the_token(node):
    """One run, two launches."""
    agent = node.launcher()
    first = node.launch(torchrun(), agent)
    second = node.launch(torchrun(TORCHELASTIC_RESTART_COUNT=1), agent)
    assert len(run_ids(first, second)) == 1
    assert len(tokens(first, second)) == 2
    assert [who.restart_count for who in first + second] == [0, 0, 1, 1]


def test_a_change_of_size_is_another_launch_of_the_same_run(node):
    """An agent restarts its workers without counting when a node comes or goes."""
    agent = node.launcher()
    first, second = node.launch(torchrun(4), agent), node.launch(torchrun(2), agent)
    assert len(run_ids(first, second)) == 1
    assert len(tokens(first, second)) == 2


def test_nodes_with_a_rendezvous_id_of_their_own_agree(node, other_node):
    """Several nodes, several agents, one run; what restart counts say differs between nodes and does not matter."""
    first = node.launch(torchrun(4, 2, node_rank=0, TORCHELASTIC_RUN_ID="exp-7f3a", TORCHELASTIC_RESTART_COUNT=0))
    second = other_node.launch(torchrun(4, 2, node_rank=1, TORCHELASTIC_RUN_ID="exp-7f3a", TORCHELASTIC_RESTART_COUNT=1))
    assert len(run_ids(first, second)) == len(tokens(first, second)) == 1
    assert [who.rank for who in first + second] == [0, 1, 2, 3]


@pytest.mark.parametrize("rendezvous", ["none", "100", "0"])
def test_several_nodes_without_an_id_of_their_own_are_refused(node, rendezvous):
    """`none`, and ids copied from an example, are shared with every other launch: better an error than a wrong run."""
    with pytest.raises(ConfigurationError, match=r"4 ranks on several nodes.*run_id="):
        node.launch(torchrun(4, 2, TORCHELASTIC_RUN_ID=rendezvous))


def test_several_nodes_with_an_explicit_run_id_need_nothing_else(node, other_node):
    """The error names the way out, and it works."""
    first = node.launch(torchrun(4, 2, node_rank=0), run_id="mine")
    second = other_node.launch(torchrun(4, 2, node_rank=1), run_id="mine")
    assert run_ids(first, second) == {"mine"}
    assert len(tokens(first, second)) == 1


def test_torchrun_on_the_nodes_of_a_step_agrees(node, other_node):
    """`srun torchrun …` with a static rendezvous: job and step are the id."""
    first = node.launch(torchrun(4, 2, node_rank=0, SLURM_JOB_ID=77, SLURM_STEP_ID=0, SLURM_PROCID=0))
    second = other_node.launch(torchrun(4, 2, node_rank=1, SLURM_JOB_ID=77, SLURM_STEP_ID=0, SLURM_PROCID=1))
    assert len(run_ids(first, second)) == 1


def test_two_torchruns_in_one_step_are_two_runs(node, other_node):
    """A script that pre-trains and then fine-tunes, on every node of one `srun`."""
    stages = [
        node.launch(torchrun(4, 2, node_rank=0, SLURM_JOB_ID=77, SLURM_STEP_ID=0, SLURM_PROCID=0))
        + other_node.launch(torchrun(4, 2, node_rank=1, SLURM_JOB_ID=77, SLURM_STEP_ID=0, SLURM_PROCID=1))
        for _ in range(2)
    ]
    assert [len(run_ids(stage)) for stage in stages] == [1, 1]
    assert len(run_ids(*stages)) == 2


def test_a_restart_by_the_same_agents_in_a_step_keeps_the_run(node, other_node):
    """Only a new agent is a new launch."""
    agents = node.launcher(), other_node.launcher()
    generations = [
        node.launch(torchrun(4, 2, node_rank=swap, SLURM_JOB_ID=77, SLURM_STEP_ID=0, SLURM_PROCID=0), agents[0])
        + other_node.launch(torchrun(4, 2, node_rank=1 - swap, SLURM_JOB_ID=77, SLURM_STEP_ID=0, SLURM_PROCID=1), agents[1])
        for swap in (0, 1)
    ]
    assert len(run_ids(*generations)) == 1


def test_torchrun_in_a_batch_script_follows_the_rules_of_torchrun(node):
    """The job of an allocation that runs many launches is no id."""
    batch = {"SLURM_JOB_ID": 77, "SLURM_PROCID": 0, "SLURM_NTASKS": 1}
    first, second = node.launch(torchrun(**batch)), node.launch(torchrun(**batch))
    assert {who.launcher for who in first} == {"torchrun"}
    assert len(run_ids(first, second)) == 2


# Slurm


def test_tasks_on_several_nodes_agree(node, other_node):
    """Job and step, without a word between the nodes."""
    first, second = node.launch(slurm(node_id=0)), other_node.launch(slurm(node_id=1))
    assert len(run_ids(first, second)) == len(tokens(first, second)) == 1
    assert [(who.rank, who.local_rank, who.local_world_size) for who in first + second] == [(0, 0, 2), (1, 1, 2), (2, 0, 2), (3, 1, 2)]


def test_the_steps_of_one_allocation_are_different_runs(node):
    """Also when they run at the same time."""
    assert len(run_ids(node.launch(slurm(2, step=0)), node.launch(slurm(2, step=1)))) == 2


def test_two_programs_in_one_step_are_two_runs_on_every_node(node, other_node):
    """`srun bash -c "python a.py; python b.py"`."""
    stages = [node.launch(slurm(node_id=0)) + other_node.launch(slurm(node_id=1)) for _ in range(2)]
    assert [len(run_ids(stage)) for stage in stages] == [1, 1]
    assert len(run_ids(*stages)) == 2


def test_a_requeued_job_keeps_its_run(node, other_node):
    """Slurm starts the job again, on old nodes and new ones."""
    first = node.launch(slurm(2, per_node=2))
    again = node.launch(slurm(4, node_id=0, SLURM_RESTART_COUNT=1)) + other_node.launch(slurm(4, node_id=1, SLURM_RESTART_COUNT=1))
    assert len(run_ids(first, again)) == 1
    assert len(tokens(first, again)) == 2
    assert again[0].restart_count == 1


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": 77, "SLURM_PROCID": 0, "SLURM_NTASKS": 8},
        {"SLURM_JOB_ID": 77, "SLURM_STEP_ID": 0xFFFFFFFA, "SLURM_PROCID": 0, "SLURM_NTASKS": 8},
    ],
    ids=["batch script", "interactive allocation"],
)
def test_a_process_outside_srun_is_alone(node, environ):
    """A batch script sees the size of the allocation, and is one process."""
    first, second = node.launch([environ]), node.launch([environ])
    assert first[0].world_size == 1
    assert len(run_ids(first, second)) == 2


def test_programs_started_from_an_interactive_step_are_different_runs(node):
    """`srun --pty bash`: every program in it has the same step."""
    environ = slurm(1, per_node=1)
    assert len(run_ids(*(node.launch(environ) for _ in range(3)))) == 3


def test_ranks_exported_from_slurm_variables_are_taken(node, other_node):
    """`RANK=$SLURM_PROCID` in a wrapper script, without LOCAL_WORLD_SIZE, on several nodes."""
    first = node.launch(
        [{**environ, "RANK": environ["SLURM_PROCID"], "WORLD_SIZE": 4, "MASTER_ADDR": "node0"} for environ in slurm(node_id=0)]
    )
    second = other_node.launch(
        [{**environ, "RANK": environ["SLURM_PROCID"], "WORLD_SIZE": 4, "MASTER_ADDR": "node0"} for environ in slurm(node_id=1)]
    )
    assert len(run_ids(first, second)) == 1
    assert [who.rank for who in first + second] == [0, 1, 2, 3]


def test_a_world_size_exported_for_torch_does_not_disturb(node):
    """Batch scripts export WORLD_SIZE and let Python read SLURM_PROCID."""
    found = node.launch([{**environ, "WORLD_SIZE": 2, "MASTER_PORT": 29500} for environ in slurm(2)])
    assert [(who.launcher, who.rank) for who in found] == [("slurm", 0), ("slurm", 1)]


# MPI


def test_open_mpi_on_several_nodes_agrees_by_its_namespace(node, other_node):
    """The parents differ, the namespace does not."""
    first = node.launch(openmpi(4, 2, PMIX_NAMESPACE="prterun-head-123@1"))
    second = other_node.launch(
        [{**environ, "OMPI_COMM_WORLD_RANK": rank} for rank, environ in enumerate(openmpi(4, 2, PMIX_NAMESPACE="prterun-head-123@1"), 2)]
    )
    assert len(run_ids(first, second)) == 1


def test_hydra_on_several_nodes_is_refused(node):
    """It gives its ranks nothing in common."""
    with pytest.raises(ConfigurationError, match="on several nodes"):
        node.launch([{**environ, "MPI_LOCALNRANKS": 1} for environ in hydra()])


def test_srun_with_pmi_is_slurm(node):
    """`srun --mpi=pmi2` sets PMI variables too; the step is the better evidence."""
    found = node.launch([{**environ, "PMI_RANK": environ["SLURM_PROCID"], "PMI_SIZE": 2} for environ in slurm(2)])
    assert [who.launcher for who in found] == ["slurm", "slurm"]


def test_mpirun_inside_an_allocation_is_mpi(node):
    """Its daemons are a step, with one task per node; the ranks are not."""
    daemon = {"SLURM_JOB_ID": 77, "SLURM_STEP_ID": 0, "SLURM_PROCID": 0, "SLURM_NTASKS": 1}
    for environs, launcher in ((openmpi(2, **daemon), "openmpi"), (hydra(2, **daemon)[1:], "hydra")):
        found = node.launch(environs)
        assert {(who.launcher, who.world_size) for who in found} == {(launcher, 2)}


# Ranks started by hand


def test_ranks_in_several_terminals_agree(node):
    """Their parents are different shells; what holds them together is the port."""
    zero, one = by_hand()
    assert len(run_ids(node.launch([zero], node.launcher("zsh")), node.launch([one], node.launcher("bash")))) == 1


def test_ranks_of_two_launchers_with_one_port_are_two_runs(node):
    """Started at the same time, mixed in any order."""
    zero, one = by_hand()
    first, second = node.launcher("python"), node.launcher("python")
    found = [node.process(environ, launcher) for environ, launcher in ((zero, first), (one, second), (one, first), (zero, second))]
    assert found[0].run_id == found[2].run_id
    assert found[1].run_id == found[3].run_id
    assert len({who.run_id for who in found}) == 2


def test_ranks_with_different_ports_in_one_shell_are_two_runs(node):
    """At the same time, in any order."""
    shell = node.launcher("bash")
    mixed = [*by_hand(MASTER_PORT=1), *by_hand(MASTER_PORT=2)][::-1]
    found = node.launch(mixed, shell)
    assert found[0].run_id == found[1].run_id != found[2].run_id == found[3].run_id


def test_a_launch_that_failed_half_way_does_not_swallow_the_next(node):
    """Rank 1 crashed before it logged; then both are started again, and again."""
    shell = node.launcher("bash")
    zero, one = by_hand()
    node.process(zero, shell, pid=100)
    node.dead.add(100)
    stages = [[node.process(one, shell, pid=pid), node.process(zero, shell, pid=pid + 1)] for pid in (200, 300)]
    assert [len(run_ids(stage)) for stage in stages] == [1, 1]
    assert len(run_ids(*stages)) == 2


def test_a_rank_that_ends_before_the_other_begins_is_of_the_same_launch(node):
    """Short scripts do not wait for each other."""
    shell = node.launcher("bash")
    zero, one = by_hand()
    first = node.process(zero, shell, pid=100)
    node.dead.add(100)
    assert node.process(one, shell, pid=101).run_id == first.run_id


@pytest.mark.parametrize(
    "more",
    [{"MASTER_ADDR": "10.0.0.1"}, {"LOCAL_WORLD_SIZE": 1}, {"LOCAL_RANK": 0, "RANK": 1}],
    ids=["an address and no local size", "one rank per node", "a local rank that differs"],
)
def test_several_nodes_by_hand_are_refused(node, more):
    """Nothing in the environment can tell this launch from the next one."""
    with pytest.raises(ConfigurationError, match="run_id="):
        node.launch([{**by_hand()[0], **more}])


def test_several_nodes_in_a_batch_job_agree(node, other_node):
    """PBS, LSF and Flux have a job id; launches in one job are counted."""
    first, second = (by_hand(2, PBS_JOBID="1.head", LOCAL_WORLD_SIZE=1)[rank] for rank in range(2))
    stages = [node.launch([first]) + other_node.launch([second]) for _ in range(2)]
    assert [len(run_ids(stage)) for stage in stages] == [1, 1]
    assert len(run_ids(*stages)) == 2


def test_an_initialised_process_group_says_who_we_are(node, monkeypatch):
    """`mp.spawn` with ranks as arguments leaves no variable; torch is asked, never imported."""
    launcher = node.launcher()
    found = []
    for rank in range(2):
        group = types.SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda rank=rank: rank, get_world_size=lambda: 2
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", group)
        found.append(node.process({}, launcher))
    assert [(who.launcher, who.rank, who.world_size) for who in found] == [("group", 0, 2), ("group", 1, 2)]
    assert len(run_ids(found)) == 1


@pytest.mark.parametrize(
    "environ, message",
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x': expected a number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2: expected a rank below WORLD_SIZE=2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1: expected a rank"),
        ({"RANK": "0"}, "RANK='0' is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE='2' is set and RANK is not"),
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}, "RANK='0' is set and WORLD_SIZE is not"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not"),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(node, environ, message):
    """The variable is named, with what it held."""
    with pytest.raises(ConfigurationError, match=message):
        node.launch([environ])


def test_empty_variables_are_as_good_as_none(node):
    """Shell scripts export them."""
    [who] = node.launch([{"RANK": "", "WORLD_SIZE": "", "TORCHELASTIC_RUN_ID": "", "SLURM_JOB_ID": ""}])
    assert who.launcher == "none"


def test_an_unsafe_run_id_is_refused(node):
    """It names a directory."""
    with pytest.raises(ConfigurationError, match="run_id="):
        node.launch([{}], run_id="../x")


def test_the_launcher_is_found_above_wrappers(monkeypatch):
    """`numactl`, `nsys` or a shell script around each rank inherits the rank's variables; the launcher does not have them."""
    wrapped = {"RANK": "1", "LOCAL_RANK": "1"}
    parents = {os.getppid(): 20, 20: 10, 10: 1}
    environments = {os.getppid(): wrapped, 20: wrapped, 10: {"RANK": "0"}}
    monkeypatch.setattr(host, "parent_of", parents.get)
    monkeypatch.setattr(host, "environment_of", environments.get)
    monkeypatch.setattr(host, "process_start_time", lambda pid: pid * 10)
    assert identity.launcher_process(wrapped) == (10, 100)
    assert identity.launcher_process({"RANK": "2"}) == (os.getppid(), os.getppid() * 10)
    assert identity.launcher_process({}) == (os.getppid(), os.getppid() * 10)
