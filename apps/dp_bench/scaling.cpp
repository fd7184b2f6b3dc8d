#include "scaling.h"

#include <dp/device.h>

#include <algorithm>

#include "model/cpu_model.h"
#include "model/scaling_model.h"
#include "report/statistics.h"

namespace dp_bench {
namespace {

constexpr double kEpoch = 50000;  // CIFAR's training images

std::vector<Column> columns() {
  return {{"what", "what"},
          {"devices", "devices", 0},
          {"ms_per_step", "ms/step", 2},
          {"ms_q1", "quartile", 2},
          {"ms_q3", "quartile", 2},
          {"speed_up", "speed-up", 2},
          {"efficiency", "% of ideal", 0},
          {"images_per_second", "img/s", 0},
          {"seconds_per_epoch", "s/50k images", 2}};
}

Row row_of(const std::string& what, int devices, double seconds, double alone, double images) {
  Row row;
  row.cells = {what + " x" + std::to_string(devices),
               static_cast<double>(devices),
               seconds * 1e3,
               Cell(),
               Cell(),
               alone / seconds,
               100 * alone / seconds / devices,
               images / seconds,
               kEpoch / images * seconds};
  return row;
}

Section measured_section(const StepResult& result) {
  Section section{"measured", "Measured: one CPU thread per device", "", columns(), {}, Bars{2, 3, 4, true}};
  if (!result.options.gpus.empty()) section.title = "Measured: GPUs";
  const auto images = static_cast<double>(result.options.run.batch_size);
  const double alone = median(result.variants.front().seconds_per_step);
  for (const Measured& one : result.variants) {
    Row row = row_of(one.spec.group, one.spec.devices, median(one.seconds_per_step), alone, images);
    row.note = one.note;
    row.samples = one.seconds_per_step;
    if (one.seconds_per_step.empty()) {
      row.kind = Kind::absent;
      row.cells.resize(2);
    } else {
      row.cells[3] = quantile(one.seconds_per_step, 0.25) * 1e3;
      row.cells[4] = quantile(one.seconds_per_step, 0.75) * 1e3;
    }
    section.rows.push_back(row);
  }
  section.text = "Same global batch for every number of devices. Reduction: sharded in dp, all-reduce in ddp.";
  return section;
}

Section modelled_section(const Hardware& hardware, int batch) {
  Section section{"",
                  hardware.name + ": ResNet18 on CIFAR, global batch " + std::to_string(batch),
                  constants_of(hardware),
                  columns(),
                  {},
                  Bars{2, {}, {}, true}};
  const double alone = step_seconds(hardware, 1, batch, Strategy::ddp);
  const auto add = [&](const std::string& what, int devices, double seconds) {
    Row row = row_of(what, devices, seconds, alone, batch);
    row.kind = Kind::modelled;
    section.rows.push_back(row);
  };
  add("one device", 1, alone);
  for (const Strategy strategy : {Strategy::star, Strategy::naive, Strategy::master, Strategy::sharded, Strategy::ddp})
    for (int n = 2; n <= std::min(8, hardware.most_devices); n *= 2)
      add(to_string(strategy), n, step_seconds(hardware, n, batch / n, strategy));
  return section;
}

Section hosts_section(const Hardware& hardware, int each) {
  // Assumptions: one or four 100 Gbit/s adapters per host, 30 us more per collective.
  Section section{
      "hosts", "Several hosts of 8 x " + hardware.name + ", ddp, " + std::to_string(each) + " images per GPU",
      "",      columns(),
      {},      Bars{2, {}, {}, true}};
  const double alone = step_seconds(hardware, 1, each, Strategy::ddp);
  for (const double network : {12.5e9, 50e9})
    for (const int hosts : {1, 2, 4, 8}) {
      const Hosts joined{hosts, network, 30e-6};
      const double seconds = step_seconds(hardware, 8, each, Strategy::ddp, joined);
      const int devices = 8 * hosts;
      Row row;
      row.cells = {std::to_string(hosts) + " hosts, " + shown(Cell(network * 8 / 1e9), 0) + " Gbit/s",
                   static_cast<double>(devices),
                   seconds * 1e3,
                   Cell(),
                   Cell(),
                   devices * alone / seconds,
                   100 * alone / seconds,
                   devices * each / seconds,
                   kEpoch / (devices * static_cast<double>(each)) * seconds};
      row.kind = Kind::modelled;
      section.rows.push_back(row);
    }
  section.text = constants_of(hardware) +
                 " Assumed between hosts: 100 or 400 Gbit/s into and out of each host, 30 us more per collective; each "
                 "host reduces first. Speed-up: relative to one GPU with the same number of images per GPU.";
  return section;
}

Section server_section(int batch) {
  const CpuServer& server = known_server();
  Section section{"server",
                  server.name + ": ResNet18 on CIFAR",
                  constants_of(server),
                  {{"what", "what"},
                   {"replicas", "replicas", 0},
                   {"ms_per_step", "ms/step", 1},
                   {"convolutions_ms", "convolutions", 1},
                   {"passes_ms", "passes", 1},
                   {"exchange_ms", "exchange", 1},
                   {"speed_up", "speed-up", 1},
                   {"efficiency", "% of ideal", 0},
                   {"images_per_second", "img/s", 0}},
                  {},
                  Bars{2, {}, {}, true}};
  constexpr double kEach = 32;
  const auto add = [&](const std::string& what, int replicas, double images) {
    const CpuStep step = step_of(server, replicas, images / replicas);
    const double rate = images / step.total(), alone = images / step_of(server, 1, images).total();
    Row row;
    row.kind = Kind::modelled;
    row.cells = {what + " x" + std::to_string(replicas),
                 static_cast<double>(replicas),
                 step.total() * 1e3,
                 step.convolutions * 1e3,
                 step.passes * 1e3,
                 step.exchange * 1e3,
                 rate / alone,
                 100 * rate / alone / replicas,
                 rate};
    section.rows.push_back(row);
  };
  for (int n = 1; n <= server.cores; n *= 2) add("global batch " + std::to_string(batch), n, batch);
  for (int n = 1; n <= server.cores; n *= 2) add("32 images per replica", n, n * kEach);
  section.text +=
      " Convolutions scale with the cores. Passes over activations do not once the cores share the memory's bandwidth. "
      "The exchange costs the same for every batch, so larger shards hide it. Speed-up: relative to one replica with "
      "the same global batch.";
  return section;
}

}  // namespace

Report scaling_report(const ScalingOptions& asked, Progress progress) {
  Report report{"scaling", "", {}, {}};
  if (asked.measure) {
    StepOptions options = resolved(asked.step);
    std::vector<VariantSpec> variants;
    for (int n = 1; n <= options.replicas; ++n)
      variants.push_back(our_variant(options, "dp" + std::to_string(n), "dp x" + std::to_string(n), "dp", n, 1, {}));
    for (int n = 2; n <= options.replicas; ++n)
      variants.push_back(our_variant(options, "ddp" + std::to_string(n), "ddp x" + std::to_string(n), "ddp", n, 1, {}));
    const StepResult result = measure_steps(options, variants, progress);
    report.title = "Scaling of " + options.network.model + " on " + shape_text(options.network.input, "x") +
                   ", global batch " + std::to_string(options.run.batch_size);
    report.facts = facts_of(result);
    report.sections.push_back(measured_section(result));
  } else {
    report.title = "Scaling of ResNet18 on CIFAR, modelled";
  }
  int number = 0;
  for (const Hardware& hardware : known_hardware()) {
    report.sections.push_back(modelled_section(hardware, asked.modelled_batch));
    report.sections.back().key = "modelled" + std::to_string(++number);
  }
  report.sections.push_back(hosts_section(known_hardware().front(), 256));
  report.sections.push_back(server_section(asked.modelled_batch));
  return report;
}

}  // namespace dp_bench
