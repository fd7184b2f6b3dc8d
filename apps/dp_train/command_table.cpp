// The options of dp_train that are not options of a run everywhere.
#include <dp/run_options.h>

#include "command.h"

namespace dp_train {
namespace {

using dp::OptionValue;
namespace accepts = dp::accepts;
using Table = dp::OptionTable<Command>;

void add_what(Table& table) {
  table.group("Model and data");
  table.add("model,--arch,-a", accepts::text(), &Command::model, "network; --list-models lists them");
  table.add("list-models", accepts::flag(), &Command::list_models, "print the networks and exit");
  table.add("list-datasets", accepts::flag(), &Command::list_datasets, "print the data sets and exit");
  table.add("data-path,--data-dir", accepts::text("a folder"), &Command::data_path, "folder of the data set's files");
  table.add("classes-from", accepts::one_of({"checkpoint", "data", "position"}), &Command::classes_from,
            "with --resume or --init: checkpoint (the class names of the data must be the checkpoint's), data (match "
            "the data's classes by name), position (match them by number)");
  table.add("input", accepts::text(), &Command::input, "synthetic: image shape C,H,W").shown("1,28,28");
  table.add("classes,--num-classes", accepts::whole(1, 1 << 20), &Command::classes, "synthetic: number of classes")
      .shown("10");
  table
      .add("images", accepts::whole(1, 1 << 26), &Command::images,
           "synthetic: number of training images; the test set has a sixth of it")
      .shown("60000");
}

void add_bad_images(Table& table) {
  table
      .add("bad-images", accepts::one_of({"fail", "skip"}), &Command::bad_images,
           "imagefolder: fail, or skip: replace an image that cannot be read by the next of its class, and list it")
      .shown("fail");
}

void add_devices(Table& table) {
  table.group("Devices");
  table.add("gpus,--gpu", accepts::text(), &Command::gpus, "ids (0,1), ranges (0-3), or all")
      .shown("all visible")
      .without({"num-gpus", "cpu"});
  table.add("num-gpus", accepts::whole(1, 1024), &Command::num_gpus, "the first N GPUs").without({"cpu"});
  table.add("cpu", accepts::whole(1, 256), &Command::cpu, "train on N CPU replicas").shown("2 if no GPU is usable");
  table.add("replicas-per-device", accepts::whole(1, 64), &Command::replicas_per_device, "replicas on each device");
}

void add_processes(Table& table) {
  table.group("Processes");
  table.add("engine", accepts::one_of({"dp", "ddp"}), &Command::engine,
            "dp: one process drives all devices; ddp: one process per device, started by this one, torchrun or "
            "mpirun");
  table.add("nnodes", accepts::whole(1, 1024), &Command::nnodes,
            "ddp: number of hosts; start each with the same command and its own --node-rank");
  table.add("node-rank", accepts::whole(0, 1023), &Command::node_rank,
            "ddp: number of this host; the others connect to host 0");
  table
      .add("master-addr", accepts::text("a host"), &Command::master_addr,
           "ddp: address of host 0, the only one on which it listens")
      .shown("127.0.0.1");
  table.add("master-port", accepts::whole(1, 65535), &Command::master_port, "ddp: port of host 0")
      .unset_at_zero()
      .shown("a free one; 29500 with several hosts");
  table.add("local-rank", accepts::whole(0, 1023), &Command::local_rank,
            "accepted for torch.distributed.launch, without effect: the rank is read from the environment");
}

// Other forms of options of a run.
void add_other_forms(Table& table) {
  table.group("Training");
  table
      .add("batch-size-per-gpu", accepts::whole(1, 1 << 20), &Command::batch_size_per_gpu,
           "batch size per replica, instead of -b")
      .without({"batch-size"});
  table.add("lr-scale", accepts::one_of({"none", "linear"}), &Command::lr_scale,
            "none, or linear: multiply the rate by global batch / the batch of the model's recipe");
  table.group("Data parallelism");
  table
      .add(
          "sync-bn", accepts::flag(), "same as --bn sync", [](const Command&) { return OptionValue{}; },
          [](Command& command, const OptionValue& on) {
            if (std::get<bool>(on)) command.trainer.parallel.batch_norm = dp::BatchNormMode::sync;
            return true;
          })
      .without({"bn"});
  table
      .add(
          "no-graphs", accepts::flag(), "same as --graphs never", [](const Command&) { return OptionValue{}; },
          [](Command& command, const OptionValue& on) {
            if (std::get<bool>(on)) command.trainer.parallel.graphs = dp::Graphs::never;
            return true;
          })
      .only_on(dp::DeviceKind::cuda)
      .without({"graphs"});
}

void add_run(Table& table) {
  table.group("The run");
  table
      .add(
          "no-eval", accepts::flag(), "same as --eval-every 0", [](const Command&) { return OptionValue{}; },
          [](Command& command, const OptionValue& on) {
            if (std::get<bool>(on)) command.trainer.eval_every = 0;
            return true;
          })
      .without({"eval-every", "evaluate"});
  table.add("output-dir", accepts::text("a folder"), &Command::output_dir, "folder of the run")
      .shown("runs/<time>_<model>");
  table.add("experiment", accepts::text(), &Command::experiment,
            "name of the run: <output-dir>/<experiment>, by default in runs/");
  table.add("evaluate,-e,--test-only", accepts::flag(), &Command::evaluate,
            "only evaluate the weights of --init or --resume");
  table.add("config,-c", accepts::text("a file"), &Command::config,
            "read options from this TOML file, such as config.toml of a run; the command line comes first");
  table.add("save-config", accepts::text("a file"), &Command::save_config,
            "write the options of the run to this file, for --config, and exit");
  table.add("print-plan", accepts::flag(), &Command::print_plan, "print the ops and buffers of a step, and exit");
  table.add("quiet", accepts::flag(), &Command::quiet, "print only the summary");
  table.add("no-progress", accepts::flag(), &Command::no_progress, "print plain lines, even on a terminal");
}

Table make() {
  Table table;
  add_what(table);
  add_bad_images(table);
  add_devices(table);
  add_processes(table);
  table.include(dp::run_options(), &Command::trainer);
  add_other_forms(table);
  add_run(table);
  return table;
}

}  // namespace

const Table& command_table() {
  static const Table table = make();
  return table;
}

}  // namespace dp_train
