// Invalid command lines: the exit code, and one line with what is wrong, where, and what to do.
#include <filesystem>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

using dp::test::BadInput;
using dp::test::check_bad_input;
using dp::test::TemporaryFolder;

void check_table(const std::vector<BadInput>& table) {
  const TemporaryFolder temp;
  dp::test::write_tiny_mnist(temp.path());
  dp::test::write_text(temp / "file", "in the way");
  for (const BadInput& input : table) check_bad_input(input, temp.path());
}

TEST_CASE("invalid numbers on the command line are rejected") {
  check_table({
      {{"--batch-size", "0"}, 2, {"--batch-size", "'0'", "1 to 1048576"}},
      {{"--batch-size", "-5"}, 2, {"--batch-size", "'-5'"}},
      {{"--batch-size", "nan"}, 2, {"--batch-size", "'nan'"}},
      {{"-b", "1e3"}, 2, {"--batch-size", "'1e3'"}},
      {{"-b", "99999999999999999999"}, 2, {"--batch-size"}},
      {{"-b", "1048577"}, 2, {"1 to 1048576"}},
      {{"-b", ""}, 2, {"--batch-size"}},
      {{"-b", "12 "}, 2, {"--batch-size"}},
      {{"--batch-size"}, 2, {"--batch-size", "dp_train --help"}},
      {{"--batch-size-per-gpu", "0"}, 2, {"--batch-size-per-gpu"}},
      {{"--epochs", "0"}, 2, {"--epochs", "from 1"}},
      {{"--epochs", "1.5"}, 2, {"--epochs", "'1.5'"}},
      {{"--max-steps", "0"}, 2, {"--max-steps"}},
      {{"--lr", "nan"}, 2, {"--lr", "'nan'"}},
      {{"--lr", "inf"}, 2, {"--lr", "'inf'"}},
      {{"--lr", "-0.1"}, 2, {"--lr", "'-0.1'"}},
      {{"--lr", "fast"}, 2, {"--lr", "'fast'"}},
      {{"--momentum", "1"}, 2, {"--momentum"}},
      {{"--momentum", "-0.1"}, 2, {"--momentum"}},
      {{"--weight-decay", "-1"}, 2, {"--weight-decay"}},
      {{"--lr-warmup-epochs", "-1"}, 2, {"--lr-warmup-epochs"}},
      {{"--lr-scheduler", "step", "--lr-step-size", "0"}, 2, {"--lr-step-size"}},
      {{"--lr-scheduler", "multistep", "--lr-milestones", "3,x"}, 2, {"--lr-milestones", "'x'"}},
      {{"--grad-accum-steps", "0"}, 2, {"--grad-accum-steps"}},
      {{"--amp", "--amp-dtype", "float16", "--cpu", "2"}, 2, {"--amp-dtype float16 requires GPUs", "use bfloat16"}},
      {{"--amp-dtype", "float16", "--cpu", "1"}, 2, {"--amp-dtype requires --amp"}},
      {{"--graphs", "always", "--cpu", "2"}, 2, {"--graphs always is not possible: only GPUs have CUDA graphs"}},
      {{"--graphs", "always", "--no-graphs", "--cpu", "1"}, 2, {"--no-graphs", "excludes", "--graphs"}},
      {{"--model-ema-decay", "0.5", "--cpu", "1"}, 2, {"--model-ema-decay requires --model-ema"}},
      {{"--graphs", "sometimes"}, 2, {"--graphs", "sometimes"}},
      {{"--trace-steps", "1:2", "--cpu", "1"}, 2, {"--trace-steps requires --trace or --profile"}},
      {{"--amp", "--amp-dtype", "float8", "--cpu", "1"}, 2, {"--amp-dtype"}},
      {{"--clip-grad-norm", "0"}, 2, {"--clip-grad-norm", "greater than 0"}},
      {{"--clip-grad-norm", "nan"}, 2, {"--clip-grad-norm"}},
      {{"--label-smoothing", "1.5"}, 2, {"--label-smoothing"}},
      {{"--mean", "0.1,0.2", "--cpu", "1", "--dry-run"}, 2, {"images of 1 channels need as many means"}},
      {{"--std", "0"}, 2, {"--std", "greater than 0"}},
      {{"--label-smoothing", "1"}, 2, {"--label-smoothing", "0 to below 1"}},
      {{"--label-smoothing", "0.9999999999"}, 2, {"--label-smoothing", "0 to below 1"}},
      {{"--bucket-mb", "-1"}, 2, {"--bucket-mb"}},
      {{"--seed", "-1"}, 2, {"--seed"}},
      {{"--seed", "18446744073709551616"}, 2, {"--seed"}},
      {{"-j", "0"}, 2, {"--workers"}},
      {{"--print-freq", "0"}, 2, {"--print-freq"}},
      {{"--save-every", "-1"}, 2, {"--save-every"}},
      {{"--save-every", ""}, 2, {"--save-every"}},
      {{"--save-every", "10x"}, 2, {"--save-every '10x'", "500steps"}},
      {{"--save-every", "0steps"}, 2, {"--save-every"}},
      {{"--save-every", "5m,9m"}, 2, {"--save-every"}},
      {{"--save-every", "1,"}, 2, {"--save-every"}},
      {{"--save-every", "1000000000h"}, 2, {"--save-every"}},
      {{"--threads-per-replica", "-1"}, 2, {"--threads-per-replica"}},
      {{"--replicas-per-device", "0"}, 2, {"--replicas-per-device"}},
  });
}

TEST_CASE("an augmentation that is unknown, needs another option or does not fit the images is rejected") {
  check_table({
      {{"--auto-augment", "imagenet"}, 2, {"--auto-augment", "imagenet", "ta_wide"}},
      {{"--flip", "often"}, 2, {"--flip", "often", "alternating"}},
      {{"--ra-ops", "3", "--cpu", "1"}, 2, {"--ra-ops requires --auto-augment ra"}},
      {{"--auto-augment", "ra", "--augmix-severity", "3", "--cpu", "1"},
       2,
       {"--augmix-severity requires --auto-augment augmix", "--auto-augment is ra"}},
      {{"--color-jitter", "0.4,0.4", "--cpu", "1"}, 2, {"--color-jitter '0.4,0.4'", "BRIGHTNESS,CONTRAST"}},
      {{"--color-jitter", "0,0,0,0.6", "--cpu", "1"}, 2, {"--color-jitter: the hue is from 0 to 0.5"}},
      {{"--no-augment", "--vflip", "--cpu", "1"}, 2, {"--no-augment excludes the options of the augmentation"}},
      {{"--auto-augment", "ra", "--images-on", "device", "--cpu", "1"},
       2,
       {"--auto-augment does not work with a device-resident data set", "--images-on host"}},
      {{"--dataset", "synthetic", "--input", "2,8,8", "--model", "mlp", "--auto-augment", "ra", "--cpu", "1"},
       2,
       {"--auto-augment requires images of 1 or 3 channels", "(2, 8, 8)"}},
  });
}

TEST_CASE("a path without effect and an address are rejected") {
  check_table({
      {{"check-data", "--data-path", "."}, 2, {"--data-path requires --dataset: digits, the default, reads no files"}},
      {{"--data-path", ".", "--dry-run"}, 2, {"--data-path requires --dataset"}},
      {{"--output-dir", "ftp://me:secret@host/run"}, 2, {"--output-dir", "is an address", "***@host"}},
  });
}

TEST_CASE("invalid devices on the command line are rejected") {
  check_table({
      {{"--cpu", "0"}, 2, {"--cpu", "1 to 256"}},
      {{"--cpu", "-2"}, 2, {"--cpu"}},
      {{"--cpu", "two"}, 2, {"--cpu", "'two'"}},
      {{"--cpu", "100000"}, 2, {"--cpu"}},
      {{"--gpus", "0"}, 4, {"--gpus 0", "no usable GPU", "--cpu"}},
      {{"--gpus", "all"}, 4, {"no usable GPU"}},
      {{"--gpus", "0,1-3"}, 4, {"no usable GPU"}},
      {{"--gpus", "abc"}, 2, {"'abc'", "0,2 or 0-3"}},
      {{"--gpus", ""}, 2, {"--gpus: '' is not a list of GPU ids"}},
      {{"--gpus", "0,,1"}, 2, {}},
      {{"--gpus", "1-0"}, 2, {}},
      {{"--gpus", "0,0"}, 2, {}},
      {{"--gpus", "-1"}, 2, {}},
      {{"--gpus", "0x1"}, 2, {"'0x1'"}},
      {{"--gpus", "99999999999"}, 2, {"'99999999999'"}},
      {{"--gpus", "0-99999999"}, 2, {}},
      {{"--gpus", "\x1b[31m\n"}, 2, {"\\x1b[31m\\x0a"}},
      {{"--num-gpus", "2"}, 4, {"--num-gpus 2", "no usable GPU"}},
      {{"--num-gpus", "0"}, 2, {"--num-gpus"}},
      {{"--gpus", "0", "--cpu", "2"}, 2, {"--gpus", "--cpu"}},
      {{"--gpus", "0", "--num-gpus", "1"}, 2, {"--num-gpus"}},
  });
}

TEST_CASE("unknown names and contradictory flags are rejected") {
  check_table({
      {{"--model", "vgg"}, 2, {"'vgg'", "mnist_convnet"}},
      {{"--dataset", "imagenet"}, 2, {"imagenet", "digits"}},
      {{"--lr-scheduler", "linear"}, 2, {"'linear'", "cosine"}},
      {{"--reduce", "ring"}, 2, {"--reduce", "ring", "allreduce"}},
      {{"--reduce-dtype", "float16"}, 2, {"--reduce-dtype", "float16", "bfloat16"}},
      {{"--comm", "mpi"}, 2, {"--comm", "host", "--engine ddp"}},
      {{"--comm", "carrier"}, 2, {"--comm", "host"}},
      {{"--loss", "mse"}, 2, {"--loss", "gathered"}},
      {{"--split", "half"}, 2, {"--split 'half'", "balanced", "3:1"}},
      {{"--split", "3:0"}, 2, {"--split '3:0'", "1 to 1000000"}},
      {{"--split", "3:1", "--cpu", "3"}, 2, {"--split 3:1 has 2 weights for 3 replicas", "--split balanced"}},
      {{"--split", "3:1", "--logical-shards", "2", "--cpu", "2"}, 2, {"--split 3:1", "--logical-shards"}},
      {{"--split", "auto", "--deterministic", "--cpu", "2"}, 2, {"--split auto", "--deterministic", "3:1"}},
      {{"--pipeline-stages", "2", "--cpu", "3"}, 2, {"--pipeline-stages 2", "there are 3", "a multiple of 2"}},
      {{"--pipeline-stages", "2", "--schedule", "interleaved"}, 2, {"interleaved", "1f1b", "zb-h1"}},
      {{"--pipeline-stages", "2", "--micro-batches", "many"}, 2, {"--micro-batches 'many'", "auto", "4096"}},
      {{"--pipeline-stages", "2", "--pipeline-split", "conv9"}, 2, {"'conv9'", "conv2, fc1, fc2"}},
      {{"--pipeline-stages", "2", "--loss", "gathered"}, 2, {"--loss gathered", "--loss local"}},
      {{"--pipeline-stages", "2", "--grad-accum-steps", "2", "--micro-batches", "4"}, 2, {"--micro-batches alone"}},
      {{"--pipeline-stages", "2", "--schedule", "zb-h1", "--recompute", "stage"}, 2, {"--recompute", "use 1f1b"}},
      {{"--schedule", "gpipe"}, 2, {"--schedule", "--pipeline-stages 2 or more"}},
      {{"--on-nonfinite", "retry"}, 2, {"--on-nonfinite", "skip"}},
      {{"--lr-scale", "sqrt"}, 2, {"--lr-scale", "linear"}},
      {{"--engine", "horovod"}, 2, {"--engine", "ddp"}},
      {{"--engine", "ddp", "--replicas-per-device", "2"}, 2, {"--replicas-per-device"}},
      {{"--engine", "ddp", "--nnodes", "2"}, 2, {"--master-addr"}},
      {{"--nnodes", "2"}, 2, {"--nnodes", "--engine ddp"}},
      {{"--engine", "ddp", "--nnodes", "2", "--master-addr", "127.0.0.1"}, 2, {"DP_TOKEN"}},
      {{"--engine", "ddp", "--node-rank", "1"}, 2, {"--node-rank 1", "--nnodes 1"}},
      {{"--engine", "ddp", "--timeout", "-1"}, 2, {"--timeout"}},
      {{"--engine", "ddp", "estimate-memory"}, 2, {"--engine dp"}},
      {{"--bn", "batch"}, 2, {"--bn"}},
      {{"--frobnicate"}, 2, {"--frobnicate"}},
      {{"train"}, 2, {"train"}},
      {{"-b", "8", "--batch-size-per-gpu", "8"}, 2, {"--batch-size"}},
      {{"--lr-gamma", "0.5"},
       2,
       {"--lr-gamma requires --lr-scheduler step, multistep, exponential or plateau", "--lr-scheduler is cosine"}},
      {{"--lr-scheduler", "onecycle", "--lr-warmup-epochs", "1", "--dry-run"}, 2, {"onecycle", "--lr-warmup-epochs"}},
      {{"--lr-milestones", "3"}, 2, {"--lr-milestones", "multistep"}},
      {{"--lr-step-size", "3"}, 2, {"--lr-step-size", "step"}},
      {{"--nesterov", "--momentum", "0", "--dataset", "mnist", "--data-path", "."}, 2, {"--nesterov requires"}},
      {{"--lr-scheduler", "multistep", "--lr-milestones", "3,2", "--dataset", "mnist", "--data-path", "."},
       2,
       {"--lr-milestones", "ascending"}},
      {{"--drop-last", "-b", "65", "--dataset", "mnist", "--data-path", ".", "--output-dir", "drop"}, 2, {"65", "64"}},
      {{"--optimizer", "velocity"}, 2, {"--optimizer", "adamw"}},
      {{"--optimizer", "adamw", "--momentum", "0.9"}, 2, {"--momentum", "--optimizer sgd"}},
      {{"--optimizer", "adamw", "--nesterov"}, 2, {"--nesterov", "--optimizer sgd"}},
      {{"--opt-betas", "0.9", "0.99"}, 2, {"--opt-betas", "--optimizer adamw"}},
      {{"--opt-eps", "0.1"}, 2, {"--opt-eps", "--optimizer adamw"}},
      {{"--optimizer", "adamw", "--opt-betas", "0.9", "1"}, 2, {"--opt-betas"}},
      {{"--optimizer", "adamw", "--opt-betas", "0.9"}, 2, {"--opt-betas", "two values"}},
      {{"--amp=maybe"}, 2, {"--amp", "'maybe' is not one of true, false"}},
      {{"--nesterov=2"}, 2, {"nesterov", "'2' is not one of true, false"}},
      {{"--bn", "sync", "--sync-bn"}, 2, {"--bn excludes --sync-bn"}},
      {{"--freeze", "conv9.*", "--dry-run", "--cpu", "1"}, 2, {"'conv9.*'"}},
      {{"--evaluate"}, 2, {"--init", "--resume"}},
      {{"--init-partial"}, 2, {"--init FILE"}},
      {{"--init", "a", "--resume", "b"}, 2, {"--init", "--resume"}},
      {{"--resume", "auto"}, 2, {"--output-dir"}},
      {{"--cpu", "1", "--cpu", "2"}, 2, {"--cpu is given 2 times"}},
      {{"--lr", "0.1", "--lr", "0.1"}, 2, {"--lr is given 2 times"}},
      {{"-b", "8", "--batch-size", "8"}, 2, {"--batch-size is given 2 times"}},
      {{"--model", "mlp", "-a", "mlp"}, 2, {"--model is given 2 times"}},
      {{"--nesterov", "--no-nesterov"}, 2, {"nesterov is given 2 times"}},
      {{"--quiet", "--quiet"}, 2, {"--quiet is given 2 times"}},
      {{"--experiment", "../x"}, 2, {"'../x'", "plain name"}},
      {{"--experiment", ".."}, 2, {"plain name"}},
      {{"--experiment", "a\nb"}, 2, {"a\\x0ab"}},
  });
}

TEST_CASE("invalid shapes and counts of synthetic images are rejected") {
  const auto synthetic = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--dataset", "synthetic", "--cpu", "1", "--model", "mlp"});
    return more;
  };
  std::vector<BadInput> table{
      {{"--input", "3,32,32"}, 2, {"--input requires --dataset synthetic", "digits"}},
      {{"--dataset", "mnist", "--data-path", ".", "--classes", "5"}, 2, {"--classes requires", "mnist"}},
      {{"--model", "resnet18", "--images", "5"}, 2, {"--images requires", "cifar10"}},
      {{"--input", "3,32,32", "estimate-memory"}, 2, {"--input requires --dataset synthetic"}},
      {synthetic({"--input", "3,32", "estimate-memory"}), 2, {"--input '3,32'", "C,H,W"}},
      {synthetic({"--input", "4096,4096,4096"}), 2, {"4096,4096,4096", "too large", "67108864 bytes"}},
      {synthetic({"--input", "67108864,67108864,67108864"}), 2, {"too large"}},
      {synthetic({"--input", "3,32,32", "--input", "3,32,32"}), 2, {"--input is given 2 times"}},
      {synthetic({"--classes", "0"}), 2, {"--classes", "'0'", "1 to 1048576"}},
      {synthetic({"--num-classes", "ten"}), 2, {"--classes", "'ten'"}},
      {synthetic({"--images", "0"}), 2, {"--images", "'0'"}},
      {synthetic({"--images", "1e4"}), 2, {"--images", "'1e4'"}},
      {{"--dataset", "synthetic", "--input", "3,32,32", "--cpu", "1"}, 2, {"mnist_convnet", "(1, 28, 28)"}},
      {{"--dataset", "imagenet", "estimate-memory"}, 2, {"'imagenet'", "digits", "synthetic"}},
  };
  for (const char* bad : {"", "3", "3,32,32,1", "0,32,32", "3,0,32", "3,32,-1", "3x32x32", "3, 32,32", "3,32,32,",
                          ",3,32", "1e1,2,3", "99999999999999999999,1,1", "67108865,1,1", "a,b,c"})
    table.push_back({synthetic({"--input", bad}), 2, {"--input '" + std::string(bad) + "'", "3,32,32"}});
  check_table(table);
}

TEST_CASE("output paths that cannot be written are rejected") {
  const std::vector<std::string> tiny{"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "--cpu", "1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tiny.begin(), tiny.end());
    return more;
  };
  check_table({
      {with({"--output-dir", "file"}), 7, {"'file'", "--output-dir"}},
      {with({"--output-dir", "file/run"}), 7, {"file/run"}},
      {with({"--output-dir", "/proc/run"}), 7, {"/proc/run"}},
      {with({"--output-dir", "/dev/null/run"}), 7, {"/dev/null/run"}},
      {with({"--output-dir", ""}), 2, {"--output-dir"}},
      {with({"--output-dir", "r1", "--summary", "."}), 7, {"'.'", "directory"}},
      {with({"--output-dir", "r2", "--summary", "none/s.json"}), 7, {"none/s.json"}},
  });
}

}  // namespace
