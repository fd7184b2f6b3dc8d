#include "check_data.h"

#include <dp/dp.h>
#include <cstdio>

#include "images.h"

namespace dp_train {

bool check_data(const Command& command) {
  std::optional<dp::TrainerCallbacks> console =
      dp::console_callbacks({.quiet = command.quiet, .progress = !command.no_progress});
  const dp::DatasetPair data = open_images(command, command.trainer.dataset_name);
  if (!command.quiet) std::printf("%s\n", dp::describe_data(data).c_str());
  const std::int64_t total = data.train->size() + data.test->size();
  std::int64_t before = 0;
  std::vector<std::string> faults;
  for (const auto& part : {data.train, data.test}) {
    const auto of_part = dp::find_bad_images(*part, command.trainer.workers, [&](std::int64_t done) {
      if (console->on_work) console->on_work({"Checking images", before + done, total});
    });
    faults.insert(faults.end(), of_part.begin(), of_part.end());
    before += part->size();
  }
  console.reset();  // ends an open progress line
  for (const std::string& fault : faults) std::printf("%s\n", dp::printable(fault).c_str());
  if (!command.quiet)
    std::printf("%lld images read, %zu of them bad%s\n", static_cast<long long>(total), faults.size(),
                faults.empty() ? "" : "; remove or replace them, or train with --bad-images skip");
  dp::flush_stdout();
  return faults.empty();
}

}  // namespace dp_train
