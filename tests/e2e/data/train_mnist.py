"""A training script as torch_xla's users write them: nothing in it knows of torch-galley.

The digits are drawn, not downloaded: each class is a pattern with noise.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
import torch_xla.utils.utils as xu
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class MNIST(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=5)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=5)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc1 = nn.Linear(256, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = self.bn1(F.relu(F.max_pool2d(self.conv1(x), 2)))
        x = self.bn2(F.relu(F.max_pool2d(self.conv2(x), 2)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


def digits(count, seed):
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(10, 1, 28, 28, generator=generator)
    generator.manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    noise = torch.randn(count, 1, 28, 28, generator=generator)
    return TensorDataset(patterns[labels] + 0.3 * noise, labels)


def _train_update(device, step, loss, tracker, epoch):
    xm.master_print(f"epoch {epoch} step {step} loss {loss.item():.5f} on {device}")


def _mp_fn(index, flags):
    torch.manual_seed(1)
    device = xm.xla_device()
    train_set, test_set = digits(flags.samples, 1), digits(64, 2)
    sampler = None
    if xr.world_size() > 1:
        sampler = DistributedSampler(
            train_set, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=True
        )
    train_loader = DataLoader(
        train_set,
        batch_size=flags.batch_size,
        sampler=sampler,
        shuffle=sampler is None,
        drop_last=True,
        num_workers=flags.num_workers,
        generator=torch.Generator().manual_seed(3),
    )
    test_loader = DataLoader(test_set, batch_size=32)

    # Scale learning rate to num cores
    lr = 0.02 * xr.world_size()
    model = MNIST().to(device)
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loss_fn = nn.NLLLoss()

    def train_loop_fn(loader, epoch):
        model.train()
        for step, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            output = model(data)
            loss = loss_fn(output, target)
            loss.backward()
            xm.optimizer_step(optimizer)
            if step % 2 == 0:
                xm.add_step_closure(_train_update, args=(device, step, loss, None, epoch))

    def test_loop_fn(loader):
        total_samples, correct = 0, 0
        model.eval()
        with torch.no_grad():
            for data, target in loader:
                output = model(data)
                pred = output.max(1, keepdim=True)[1]
                correct += pred.eq(target.view_as(pred)).sum()
                total_samples += data.size()[0]
        accuracy = 100.0 * correct.item() / total_samples
        return xm.mesh_reduce("test_accuracy", accuracy, lambda values: sum(values) / len(values))

    train_device_loader = pl.MpDeviceLoader(train_loader, device)
    test_device_loader = pl.MpDeviceLoader(test_loader, device)
    for epoch in range(1, flags.num_epochs + 1):
        train_loop_fn(train_device_loader, epoch)
        accuracy = test_loop_fn(test_device_loader)
        xm.master_print(f"Epoch {epoch}, Accuracy={accuracy:.2f}")
    xm.rendezvous("training is over")
    xm.save(model.state_dict(), flags.output)
    if xm.is_master_ordinal():
        xm.master_print(met.metrics_report(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--num_workers", type=int, default=0)
    flags = parser.parse_args()
    assert xu.getenv_as("NOT_SET", bool, False) is False
    xm.master_print("torch_xla", torch_xla.__version__)
    xmp.spawn(_mp_fn, args=(flags,))
