"""Under torchrun on two and on four ranks: what was asked of DDP and of the process group is in force, and hooks really compress."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
InitProcessGroupKwargs(backend="gloo", timeout=timedelta(minutes=10)).init()
report["group"] = in_force()

SIDE, STEPS = 32, 4
X = torch.linspace(-1, 1, SIDE) * (rank + 1)                     # a gradient of rank one, another one on each rank
FULL = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(rank))       # a gradient of full rank

TWO = torch.ones(SIDE, SIDE) + torch.outer(torch.linspace(0, 2, SIDE), torch.linspace(1, 3, SIDE))     # makes it rank two
LOW = torch.ones(SIDE, SIDE)

def gradients(handler, weights=LOW, steps=STEPS):
    torch.manual_seed(0)
    model = handler.wrap(torch.nn.Linear(SIDE, SIDE, bias=False))
    found = []
    for _ in range(steps):
        model.zero_grad()
        (model(torch.eye(SIDE) if weights is FULL else torch.diag(X)) * weights).sum().backward()
        found.append(model.module.weight.grad.clone())
    return model, found

plains = {id(weights): gradients(DistributedDataParallelKwargs(), weights)[1] for weights in (LOW, TWO, FULL)}
POWER = {"start_powerSGD_iter": 2, "use_error_feedback": False, "warm_start": False}
CASES = {
    "no": ("no", "no", {}), "fp16": ("fp16", "no", {}), "bf16": ("bf16", "no", {}),
    "power_sgd": ("power_sgd", "no", POWER), "power_sgd+fp16": ("power_sgd", "fp16", POWER), "power_sgd+bf16": ("power_sgd", "bf16", POWER),
    "power_sgd rank 2": ("power_sgd", "no", POWER | {"matrix_approximation_rank": 2}),
    "power_sgd with memory": ("power_sgd", "no", {"start_powerSGD_iter": 2}),
    "batched_power_sgd": ("batched_power_sgd", "no", POWER), "batched_power_sgd+fp16": ("batched_power_sgd", "fp16", POWER),
    "batched_power_sgd+bf16": ("batched_power_sgd", "bf16", POWER),
    "post_localSGD": ("post_localSGD", "no", {"start_localSGD_iter": 2}),
}
for name, (hook, wrapper, options) in CASES.items():
    handler = DistributedDataParallelKwargs(comm_hook=hook, comm_wrapper=wrapper, comm_state_option=options)
    weights = TWO if name == "power_sgd rank 2" else LOW
    model, found = gradients(handler, weights)
    _, full = gradients(handler, FULL)
    plain = plains[id(weights)]
    state = registered(model).state if registered(model) else None
    report[name] = {
        "close": [torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2) for ours, theirs in zip(found, plain)],
        "equal": [torch.equal(ours, theirs) for ours, theirs in zip(found, plain)],
        "full": [float((ours - theirs).norm() / theirs.norm()) for ours, theirs in zip(full, plains[id(FULL)])],
        "ratio": registered(model).compression_ratio() if registered(model) else None,
        "iter": getattr(state, "iter", None),
        "in_force": ddp_in_force(model),
    }

alone, _ = dist.new_subgroups(group_size=1)
handler = DistributedDataParallelKwargs(comm_hook="post_localSGD", comm_state_option={"start_localSGD_iter": 2, "subgroup": alone})
report["alone"] = [torch.equal(ours, theirs) for ours, theirs in zip(gradients(handler)[1], plains[id(LOW)])]

def add_up(state, bucket):
    state["calls"] += 1
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])

own = {"calls": 0}
found = gradients(DistributedDataParallelKwargs(comm_hook=add_up, comm_state_option={"state": own}))[1]
report["callable"] = [own["calls"], all(torch.allclose(ours, ranks * theirs) for ours, theirs in zip(found, plains[id(LOW)]))]

def attributes(**chosen):
    # 6 MB of weights: several buckets of 1 MB.
    model = DistributedDataParallelKwargs(**chosen).wrap(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6))))
    for _ in range(3):
        model(torch.ones(1, 512)).sum().backward()
    names = ("dim", "find_unused_parameters", "gradient_as_bucket_view", "static_graph", "bucket_bytes_cap_default")
    found = {name: getattr(model, name) for name in names}
    return found | {"bucket_cap_mb": model.bucket_bytes_cap // 2**20, "in_force": ddp_in_force(model)}

report["reference"] = attributes(bucket_cap_mb=15, find_unused_parameters=True)
report["default"] = attributes()
report["explicit"] = attributes(bucket_cap_mb=25, broadcast_buffers=True, gradient_as_bucket_view=True, static_graph=True)
report["small"] = attributes(bucket_cap_mb=1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    report["no broadcast"] = attributes(broadcast_buffers=False)["in_force"]["broadcast_buffers"]

frozen = torch.nn.Linear(1, 1).requires_grad_(False)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    report["frozen"] = DistributedDataParallelKwargs().wrap(frozen) is frozen and [str(one.message) for one in caught]
end()
"""

Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def reports(launch) -> Reports:
    """One launch for all of it."""
    found: Reports = launch(SCRIPT)[1]
    return found


def test_the_process_group_has_the_timeout_that_was_set(reports):
    """Ten minutes on gloo, where the class's default is as long and torch's is not."""
    assert [one["group"] for one in reports] == [{"backend": "gloo", "world_size": len(reports), "timeout": 600.0}] * len(reports)


def test_arguments_of_ddp_are_in_force(reports):
    """The reference's own check."""
    for one in reports:
        found = one["reference"]
        assert (found["bucket_cap_mb"], found["find_unused_parameters"], found["dim"]) == (15, True, 0)
        assert (found["gradient_as_bucket_view"], found["in_force"]["broadcast_buffers"]) == (False, True)


def test_a_default_that_was_set_is_in_force(reports):
    """25 MiB that were set are all buckets' size; not set, torch has a smaller first bucket."""
    for one in reports:
        assert (one["default"]["bucket_bytes_cap_default"], one["explicit"]["bucket_bytes_cap_default"]) == (True, False)
        assert (one["explicit"]["gradient_as_bucket_view"], one["explicit"]["static_graph"]) == (True, True)
        assert one["no broadcast"] is False


def test_buckets_are_told_as_they_are(reports):
    """DDP sorts its buckets anew after the first step."""
    for one in reports:
        assert sum(one["small"]["in_force"]["bucket_bytes"]) == 6 * (512 * 512 + 512) * 4
        assert len(one["small"]["in_force"]["bucket_bytes"]) > len(one["default"]["in_force"]["bucket_bytes"]) > 0


HALF = ["fp16", "bf16"]
POWER = ["power_sgd", "power_sgd+fp16", "power_sgd+bf16", "power_sgd rank 2", "power_sgd with memory"]
BATCHED = ["batched_power_sgd", "batched_power_sgd+fp16", "batched_power_sgd+bf16"]


@pytest.mark.parametrize("case", ["no", *HALF, *POWER, *BATCHED, "post_localSGD"])
def test_gradients_are_close_to_plain_ddp(reports, case):
    """For each hook and wrapper of the reference, in every step, before and after the warm-up."""
    assert [one[case]["close"] for one in reports] == [[True] * 4] * len(reports)
    hook, _, wrapper = case.partition(" ")[0].partition("+")
    for one in reports:
        assert (one[case]["in_force"]["comm_hook"], one[case]["in_force"]["comm_wrapper"]) == (hook, wrapper or "no")


@pytest.mark.parametrize("case", HALF)
def test_half_precision_really_travels(reports, case):
    """The gradients are those of half precision, not the same."""
    for one in reports:
        assert one[case]["equal"] == [False] * 4
        assert one[case]["ratio"] == 2.0


@pytest.mark.parametrize("case", [*POWER, *BATCHED])
def test_power_sgd_really_compresses(reports, case):
    """After the warm-up, and not before: a gradient of full rank loses something, and less has travelled."""
    for one in reports:
        exact, lossy = one[case]["full"][:2], one[case]["full"][2:]
        assert max(exact) < 1e-2
        assert min(lossy) > 0.3
        assert one[case]["iter"] == 4
        rank = 2 if case == "power_sgd rank 2" else 1
        assert one[case]["ratio"] == pytest.approx(32 * 32 / (2 * 32 * rank) * (2 if "+" in case else 1))


def test_local_sgd_averages_within_its_group(reports):
    """With a group of this rank alone nothing is averaged after the first steps; by default the group is the node."""
    assert [one["alone"] for one in reports] == [[True, True, False, False]] * len(reports)
    assert [one["post_localSGD"]["equal"] for one in reports] == [[True] * 4] * len(reports)


def test_a_callable_carries_the_gradients(reports):
    """It is called for every bucket of every step, with the state."""
    assert [one["callable"] for one in reports] == [[4, True]] * len(reports)


def test_a_model_that_is_not_trained_stays_as_it_is(reports):
    """Torch would refuse to wrap it."""
    message = "DistributedDataParallelKwargs has no effect on a model of which no parameter requires a gradient"
    assert [one["frozen"] for one in reports] == [[message]] * len(reports)
