// Finds and opens the four IDX files of MNIST and Fashion-MNIST.
#include <array>
#include <filesystem>
#include <optional>

#include "data/datasets/known_files.h"
#include "data/formats/idx.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "dp/shell.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

constexpr IdxFormat kFormat{28, 28, 10};

struct FileName {
  const char* stem;
  const char* kind;
};

constexpr std::array<FileName, 4> kFiles{{{"train-images", "idx3-ubyte"},
                                          {"train-labels", "idx1-ubyte"},
                                          {"t10k-images", "idx3-ubyte"},
                                          {"t10k-labels", "idx1-ubyte"}}};

std::string official(const FileName& file) { return std::string(file.stem) + "-" + file.kind; }

// Accepts '-' or '.' before the kind, plain or .gz. Prefers the plain file, which is faster to read.
std::optional<fs::path> find_file(const fs::path& folder, const FileName& file) {
  for (const char* packing : {"", ".gz"})
    for (const char* joint : {"-", "."}) {
      const fs::path path = folder / (std::string(file.stem) + joint + file.kind + packing);
      std::error_code ignored;  // opening the file reports the reason
      if (fs::symlink_status(path, ignored).type() != fs::file_type::not_found) return path;
    }
  return std::nullopt;
}

Error missing(const std::string& dataset, const std::string& folder, const std::string& what) {
  std::string names;
  for (const FileName& file : kFiles) names += (names.empty() ? "" : ", ") + official(file);
  return Error(ErrorCode::data, dataset + ": " + what + "; download them with `dp_train fetch " + dataset +
                                    " --data-path " + path_argument(folder) + "`, put the four files there (" + names +
                                    ", plain or .gz), set --data-path to their folder, or train without them: "
                                    "--dataset digits");
}

std::array<fs::path, 4> find_all(const std::string& dataset, const char* torchvision_name, const std::string& folder) {
  std::error_code ignored;
  if (fs::is_regular_file(folder, ignored))
    throw missing(dataset, folder_of(folder), folder + " is a file, not a folder");
  const std::array<fs::path, 3> places{fs::path(folder), fs::path(folder) / "raw",
                                       fs::path(folder) / torchvision_name / "raw"};
  std::string lacking;  // of the first place that has some of the files
  for (const fs::path& place : places) {
    std::array<std::optional<fs::path>, 4> found;
    for (std::size_t i = 0; i < kFiles.size(); ++i) found[i] = find_file(place, kFiles[i]);
    if (!found[0] && !found[1] && !found[2] && !found[3]) continue;
    if (found[0] && found[1] && found[2] && found[3]) return {*found[0], *found[1], *found[2], *found[3]};
    for (std::size_t i = 0; i < kFiles.size(); ++i)
      if (!found[i] && lacking.empty()) lacking = place.string() + " lacks " + official(kFiles[i]);
  }
  const std::string instead = mnist_found_instead({places.begin(), places.end()});
  if (!lacking.empty()) throw missing(dataset, folder, lacking + instead);
  throw missing(dataset, folder,
                "no files in " + places[0].string() +
                    (fs::is_directory(places[0], ignored) ? "" : " (no such folder)") + ", " + places[1].string() +
                    " or " + places[2].string() + instead);
}

DatasetPair open_pair(const std::string& dataset, const char* torchvision_name, const std::string& folder,
                      const Normalization& normalization, const std::vector<std::string>& names = {}) {
  const auto paths = find_all(dataset, torchvision_name, folder);
  const auto read = [&](const fs::path& images, const fs::path& labels) {
    FileReader image_file(images.string()), label_file(labels.string());
    return read_idx(image_file, label_file, kFormat, normalization, names);
  };
  return {read(paths[0], paths[1]), read(paths[2], paths[3])};
}

}  // namespace

namespace datasets {

DatasetPair mnist(const std::string& folder) { return open_pair("mnist", "MNIST", folder, {{0.1307f}, {0.3081f}}); }

DatasetPair fashion_mnist(const std::string& folder) {
  return open_pair("fashion_mnist", "FashionMNIST", folder, {{0.2860f}, {0.3530f}}, fashion_mnist_names());
}

}  // namespace datasets
}  // namespace dp
