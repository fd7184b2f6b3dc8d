#include "start.h"

#include <dp/error.h>
#include <unistd.h>
#include <filesystem>

namespace dp_train {

void start_fetch(const Source& source, const FetchOptions& options) {
  std::error_code unknown;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
  if (unknown)  // a relative path would start a program of the working folder
    throw dp::Error(dp::ErrorCode::usage, "fetch: cannot read /proc/self/exe to find dp_fetch: " + unknown.message());
  const std::string mirror = options.mirror.value_or("");
  for (const auto& folder : {own, own / "../lib/dp"}) {
    const std::string program = (folder / "dp_fetch").string();
    ::execl(program.c_str(), program.c_str(), source.dataset.c_str(), options.data_path.c_str(), mirror.c_str(),
            options.quiet ? "quiet" : "", options.progress ? "progress" : "", nullptr);
  }
  std::string files;
  for (const RemoteFile& file : source.files) files += " " + source.mirrors.front() + file.name;
  throw dp::Error(dp::ErrorCode::usage,
                  "fetch: the program dp_fetch is not in " + own.string() +
                      "; install libcurl and libarchive and build again, or download by hand:" + files);
}

}  // namespace dp_train
