// No option is ignored: each one alone, with a non-default value, changes the run's record, weights or files, and
// nothing else.
#include <regex>
#include <sstream>

#include "apps/options/option_runs.h"
#include "dp/trainer.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

template <typename Row>
std::vector<Row> part(const std::vector<Row>& rows, std::size_t number, std::size_t parts) {
  const auto at = [&](std::size_t n) { return rows.begin() + static_cast<std::ptrdiff_t>(n * rows.size() / parts); };
  return {at(number), at(number + 1)};
}

TEST_CASE("each training option changes what it names, first half") { check_rows(part(training_rows(), 0, 2)); }
TEST_CASE("each training option changes what it names, second half") { check_rows(part(training_rows(), 1, 2)); }
TEST_CASE("each option of data parallelism changes what it names, part 1 of 4") {
  check_rows(part(parallel_rows(), 0, 4));
}
TEST_CASE("each option of data parallelism changes what it names, part 2 of 4") {
  check_rows(part(parallel_rows(), 1, 4));
}
TEST_CASE("each option of data parallelism changes what it names, part 3 of 4") {
  check_rows(part(parallel_rows(), 2, 4));
}
TEST_CASE("each option of data parallelism changes what it names, part 4 of 4") {
  check_rows(part(parallel_rows(), 3, 4));
}
TEST_CASE("each data option changes what it names") { check_rows(part(data_rows(), 0, 2)); }
TEST_CASE("each option of order and randomness changes what it names") { check_rows(part(data_rows(), 1, 2)); }
TEST_CASE("each option of the augmentation changes what it names") { check_rows(augmentation_rows()); }
TEST_CASE("each option of the run changes what it names, first half") { check_rows(part(run_rows(), 0, 2)); }
TEST_CASE("each option of the run changes what it names, second half") { check_rows(part(run_rows(), 1, 2)); }

TEST_CASE("options that end the program early or need GPUs or hosts are parsed, first half") {
  for (const AloneRow& row : part(alone_rows(), 0, 2)) check_alone(row);
}

TEST_CASE("options that end the program early or need GPUs or hosts are parsed, second half") {
  for (const AloneRow& row : part(alone_rows(), 1, 2)) check_alone(row);
}

TEST_CASE("with --no-progress no line is rewritten on a terminal") {
  CHECK_THAT(printed_on_a_terminal({"--output-dir", "@/a", "-p", "1"}), Catch::Contains("\x1b[J"));
  CHECK_THAT(printed_on_a_terminal({"--output-dir", "@/b", "-p", "1", "--no-progress"}), !Catch::Contains("\x1b[J"));
}

TEST_CASE("on a terminal one line shows the work before training and is erased at its end") {
  const auto shown = [](const std::string& work) { return "\r" + work + " ...\x1b[J\r\r\x1b[J\r"; };
  const std::string plain = printed_on_a_terminal({"--output-dir", "@/works", "--epochs", "1"}, {{"", 80}});
  CHECK_THAT(plain, Catch::Contains(shown("Reading images")) && Catch::Contains(shown("Planning layers")));
  const std::string measured =
      printed_on_a_terminal({"--output-dir", "@/speeds", "--epochs", "1", "--split", "auto"}, {{"", 80}});
  CHECK_THAT(measured, Catch::Contains(shown("Measuring the devices' speeds")));
}

// The progress lines, in order.
std::vector<std::string> progress_lines(const std::string& printed) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; (at = printed.find("\rEpoch ", at)) != std::string::npos; ++at)
    lines.push_back(printed.substr(at + 1, printed.find("\x1b[J", at) - at - 1));
  return lines;
}

TEST_CASE("the progress line fits its terminal, 80 and 50 columns wide, and follows a change of its size") {
  const std::string printed = printed_on_a_terminal({"--output-dir", "@/sized", "-p", "1", "--epochs", "40"},
                                                    {{"", 80}, {"Epoch 20 [", 50}}, "backward:dev0:step81");
  const std::vector<std::string> lines = progress_lines(printed);
  REQUIRE(lines.size() == 160);
  for (const std::string& line : lines) CHECK(line.size() < 80);
  CHECK_THAT(lines.front(), Catch::Contains("acc1 ") && Catch::Contains(" left"));
  CHECK(lines.back().size() < 50);
  CHECK_THAT(lines.back(), Catch::Contains("loss ") && !Catch::Contains(" left"));
}

std::set<std::string> options_tested() {
  // config/ tests the second and the third, and tests/embed the last two.
  std::set<std::string> names{"--no-progress", "--config", "--save-config", "--own-loss", "--own-augmentation"};
  for (const auto& rows : {training_rows(), parallel_rows(), data_rows(), augmentation_rows(), run_rows()})
    for (const OptionRow& row : rows) names.insert(row.option);
  for (const AloneRow& row : alone_rows()) names.insert(row.option);
  return names;
}

TEST_CASE("every option and subcommand of dp_train is in the table of options") {
  const TemporaryFolder temp;
  std::istringstream help(run_dp_train({"--help"}, temp.path()).out);
  const std::regex long_name("^  (?:-[^-,]+,)?(--[a-z0-9-]+)"), word("^  ([a-z][a-z-]*) ");
  std::set<std::string> offered;
  std::smatch found;
  for (std::string line; std::getline(help, line);)
    if (std::regex_search(line, found, long_name) || std::regex_search(line, found, word)) offered.insert(found[1]);
  CHECK(offered.size() > 70);
  CHECK(offered == options_tested());
}

// The structured bindings fail to compile if a member is added. Add it here, with the option that sets it. Those of the
// optimizers are compared with their table in tests/optimizer/.
TEST_CASE("every member of the trainer's and the engine's options is set by an option of the table or listed") {
  [[maybe_unused]] auto [epochs, max_steps, batch_size, optimizer, schedule, parallel, measure_split, shuffle, augment,
                         augmentation, drop_last, balanced_sampling, repeats, mixup_alpha, cutmix_alpha, class_weights,
                         balance_classes, sample_weights, metrics, workers, images_on, dataset_name, output_dir,
                         save_every_epochs, save_every_steps, save_every_seconds, sync_checkpoints, checkpoint_hist,
                         resume, init, first_weights, init_partial, classes_by_position, summary_file, trace_file,
                         profile, dry_run, print_freq, eval_every, test_augmentation, patience, record, program,
                         resumed_with, given_by, stop, finish, unsaved] = dp::TrainerOptions{};
  [[maybe_unused]] auto [devices, group, reduce, reduce_dtype, comm, loss, split, split_weights, bucket_bytes,
                         threads_per_replica, pin_threads, hurried, seed, deterministic, exact_convolutions, tf32,
                         autotune, graphs, logical_shards, pipeline, batch_norm, fold_norms, parameter_groups, amp,
                         loss_scale, dropout, label_smoothing, output_loss, soft_targets, weighted_samples, own_loss,
                         grad_accum_steps, clip_grad_norm, on_nonfinite, ema_decay, check_replicas, timeout_seconds,
                         trace_first, trace_steps] = dp::DataParallelOptions{};
  [[maybe_unused]] auto [padding, flip, vflip, rotation, auto_augment, ra_ops, ra_magnitude, augmix_severity,
                         color_jitter, own, random_erase, interpolation] = dp::Augmentation{};
  [[maybe_unused]] auto [stages, micro_batches, pipeline_schedule, cuts, measured, recompute] = dp::PipelineOptions{};
  const std::set<std::string> tested = options_tested();
  for (const char* option : {"--epochs",
                             "--max-steps",
                             "--batch-size",
                             "--lr",
                             "--momentum",
                             "--nesterov",
                             "--optimizer",
                             "--opt-betas",
                             "--opt-eps",
                             "--weight-decay",
                             "--freeze",
                             "--lr-factor",
                             "--no-decay-norm-bias",
                             "--lr-scheduler",
                             "--no-shuffle",
                             "--no-augment",
                             "--crop-padding",
                             "--flip",
                             "--vflip",
                             "--rotation",
                             "--auto-augment",
                             "--ra-ops",
                             "--ra-magnitude",
                             "--augmix-severity",
                             "--color-jitter",
                             "--own-augmentation",
                             "--random-erase",
                             "--interpolation",
                             "--drop-last",
                             "--balanced-sampling",
                             "--ra-reps",
                             "--workers",
                             "--images-on",
                             "--dataset",
                             "--output-dir",
                             "--save-every",
                             "--checkpoint-hist",
                             "--sync-checkpoints",
                             "--resume",
                             "--init",
                             "--init-partial",
                             "--classes-from",
                             "--summary",
                             "--trace",
                             "--profile",
                             "--dry-run",
                             "--print-freq",
                             "--eval-every",
                             "--tta",
                             "--patience",
                             "--cpu",
                             "--engine",
                             "--reduce",
                             "--reduce-dtype",
                             "--comm",
                             "--loss",
                             "--split",
                             "--bucket-mb",
                             "--threads-per-replica",
                             "--seed",
                             "--deterministic",
                             "--exact-conv",
                             "--tf32",
                             "--no-autotune",
                             "--graphs",
                             "--logical-shards",
                             "--pipeline-stages",
                             "--bn",
                             "--fold-bn",
                             "--amp",
                             "--no-dropout",
                             "--label-smoothing",
                             "--output-loss",
                             "--own-loss",
                             "--mixup-alpha",
                             "--cutmix-alpha",
                             "--class-weights",
                             "--sample-weights",
                             "--grad-accum-steps",
                             "--clip-grad-norm",
                             "--on-nonfinite",
                             "--model-ema-decay",
                             "--check-replicas",
                             "--timeout",
                             "--trace-steps"})
    CHECK(tested.contains(option));
  // No option sets pin_threads (for embedders), soft_targets (the trainer sets it), loss_scale (for float16 on GPUs),
  // stop and unsaved (for signals), finish (for callbacks), record, program and given_by (what the program says of the
  // options).
}

}  // namespace
