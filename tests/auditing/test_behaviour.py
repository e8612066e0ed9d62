def test_many_samples_run_in_batches():
    """Also the trial whether the network runs in float64."""
    largest = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model.register_forward_pre_hook(lambda module, args: largest.append(len(args[0])))
    lbq.audit(model, torch.randn(500, 1, 2, 2))
    assert max(largest) <= 64
