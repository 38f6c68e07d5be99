import glob
import os

import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

# 调试开关 1: 转储 HLO 文本到磁盘
HLO_DIR = "/tmp/hlo_dump"
os.environ["XLA_FLAGS"] = "--xla_dump_hlo_as_text --xla_dump_to=" + HLO_DIR

# 调试开关 2: 细粒度编译日志
os.environ["XLA_DEBUG"] = "1"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 32)
        self.fc2 = torch.nn.Linear(32, 8)
        self.act = torch.nn.ReLU()

    def forward(self, x):
        h = self.act(self.fc1(x))
        return self.fc2(h)


def main():
    dev = xm.xla_device()
    print("device:", dev)

    # 把模型和张量搬到 XLA 设备
    model = Net().to(dev)
    x = torch.randn(4, 16).to(dev)

    # LazyTensor: 前向反向只"记菜"不执行
    y = model(x)
    loss = y.sum()
    loss.backward()

    # 关键: 触发图编译与执行
    xm.mark_step()
    print("output shape:", y.shape, "loss:", loss.item())

    # 查看编译指标: 编译耗时/融合数量等
    report = met.metrics_report()
    print(report[:2000])

    # 验证 HLO 产物是否成功落盘
    files = sorted(glob.glob(HLO_DIR + "/*.txt"))
    print("hlo files:", len(files))
    for f in files[:2]:
        print("dump:", f)


if __name__ == "__main__":
    main()
