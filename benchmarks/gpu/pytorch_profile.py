"""Prints the kernels of five training steps of eager PyTorch: resnet18 on 3x32x32, batch 512, bfloat16, channels last.

    python3 benchmarks/gpu/pytorch_profile.py FOLDER    the folder of pytorch_step.py
"""
import sys

sys.path.insert(0, sys.argv[1])
import pytorch_step  # noqa: E402
import torch  # noqa: E402

STEPS, BATCH, MOST_KERNELS = 5, 512, 60


def main():
    pytorch_step.use_the_best_convolutions()
    device, memory_format = torch.device("cuda", 0), torch.channels_last
    model = pytorch_step.MODELS["resnet18"]((3, 32, 32), 100).to(device, memory_format=memory_format).train()
    images = [torch.randint(0, 256, (BATCH, 3, 32, 32), dtype=torch.uint8, device=device) for _ in range(2)]
    labels = [torch.randint(0, 100, (BATCH,), device=device) for _ in range(2)]
    trainer = pytorch_step.Trainer(model, images, labels, False, memory_format, "bf16")
    trainer.run(5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        trainer.run(STEPS)
    kernels = sorted(profiler.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    for kernel in kernels[:MOST_KERNELS]:
        print(f"{kernel.self_device_time_total / STEPS / 1e3:8.3f} ms  {kernel.count / STEPS:6.1f} times  {kernel.key}")
    print(f"{sum(kernel.self_device_time_total for kernel in kernels) / STEPS / 1e3:.3f} ms of kernels in a step")


main()
