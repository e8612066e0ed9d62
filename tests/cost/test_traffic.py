from lbq.cost import CountTable, LayerCounts, SynapseSize, ann_traffic, burst_traffic


def synapse(name, **sizes):
    return SynapseSize(name=name, macs=1, padded_macs=1, **sizes)


def table(timesteps):
    return CountTable(
        num_images=1,
        timesteps=timesteps,
        synapses=(
            synapse("stem", timesteps=1, num_weights=10, inputs=7, has_real_input=True),
            synapse("a", timesteps=timesteps, num_weights=100, inputs=20, has_real_input=False),
        ),
        edges=(),
        layers=tuple(
            LayerCounts(layer=name, t=t, neurons=20, active=0, max_level=5, plane_formations=0)
            for name in ("one", "two")
            for t in range(timesteps)
        ),
    )


def test_an_ann_moves_everything_once():
    moved = ann_traffic(table(4))
    assert (moved.weight_bytes, moved.activation_bytes, moved.state_bytes) == (110, 27 + 40, 0)


def test_a_burst_network_moves_it_at_every_timestep_and_carries_its_membranes():
    moved = burst_traffic(table(4))
    assert moved.weight_bytes == 10 + 4 * 100
    assert moved.activation_bytes == 7 + 4 * 20 + 4 * 40
    assert moved.state_bytes == 2 * 4 * 40 * 3
    assert moved.total == moved.weight_bytes + moved.activation_bytes + moved.state_bytes


def test_one_timestep_needs_no_state_and_moves_what_the_ann_moves():
    assert burst_traffic(table(1)) == ann_traffic(table(1))
