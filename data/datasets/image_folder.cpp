#include "data/datasets/image_folder.h"

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "data/augment/crops.h"
#include "data/augment/resize.h"
#include "data/formats/byte_reader.h"
#include "data/formats/rgb_image.h"
#include "dp/error.h"
#include "dp/shell.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;
constexpr std::size_t kMaxBufferBytes = std::size_t{32} << 20;  // larger buffers are freed after each image

// Reusable buffers of one thread.
struct Workplace {
  std::vector<std::uint8_t> file;
  RgbImage image;
  Resizer resizer;

  void shrink() {
    for (auto* buffer : {&file, &image.pixels})
      if (buffer->capacity() > kMaxBufferBytes) std::vector<std::uint8_t>().swap(*buffer);
  }
};

void read_file(const std::string& path, std::vector<std::uint8_t>& bytes) {
  FileReader file(path, "make it a readable image, or remove it");
  const std::uint64_t size = *file.size();
  if (size > kMaxFileBytes)
    throw undecodable(path,
                      "expected at most " + std::to_string(kMaxFileBytes) + " bytes, found " + std::to_string(size));
  bytes.resize(size);
  bytes.resize(file.read(bytes));
}

class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::string folder, ImageList list, std::int64_t side)
      : folder_(std::move(folder)),
        list_(std::move(list)),
        side_(side),
        normalization_{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}} {}

  std::int64_t size() const override { return static_cast<std::int64_t>(list_.labels.size()); }
  Shape image_shape() const override { return Shape{3, side_, side_}; }
  std::int64_t classes() const override { return static_cast<std::int64_t>(list_.classes.size()); }
  std::vector<std::string> class_names() const override { return list_.classes; }
  const Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override { return list_.labels[static_cast<std::size_t>(index)]; }
  Augmentation augmentation() const override { return {.flip = true}; }
  bool varies() const override { return true; }
  // The path below the class's folder, and the size: "a.png 1234".
  std::string sample_id(std::int64_t index) const override {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(list_.path(folder_, index), error);
    return list_.name(index) + (error ? " ?" : " " + std::to_string(size));
  }
  std::size_t bytes_to_read() const override {
    std::call_once(sampled_, [&] { most_bytes_ = most_of_sample(); });
    return most_bytes_;
  }
  std::vector<std::pair<std::string, std::int64_t>> passed_over() const override {
    return {list_.passed_over.begin(), list_.passed_over.end()};
  }

  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    thread_local Workplace mine;
    const std::string path = list_.path(folder_, index);
    read_file(path, mine.file);
    decode_image(path, mine.file, mine.image);
    const RgbView whole{mine.image.pixels.data(), mine.image.width, mine.image.height, 3 * mine.image.width};
    if (random) {
      const Region part = random_resized_crop(whole.width, whole.height, *random);
      mine.resizer.resize(whole.part(part), side_, side_, {0, 0, side_, side_}, out);
    } else {
      const CentralCrop crop = central_crop(whole.width, whole.height, side_);
      mine.resizer.resize(whole, crop.width, crop.height, crop.window, out);
    }
    mine.shrink();
  }

 private:
  // The largest of 16 files, spread evenly over the list. Unreadable files are ignored.
  std::size_t most_of_sample() const {
    constexpr std::int64_t kSampled = 16;
    std::size_t most = 0;
    std::vector<std::uint8_t> file;
    for (std::int64_t i = 0; i < std::min(kSampled, size()); ++i) try {
        read_file(list_.path(folder_, size() * i / std::min(kSampled, size())), file);
        most = std::max(most, file.size() + bytes_to_decode(file));
      } catch (const Error&) {
      }
    return most;
  }

  std::string folder_;
  ImageList list_;
  mutable std::once_flag sampled_;
  mutable std::size_t most_bytes_ = 0;
  std::int64_t side_;
  Normalization normalization_;
};

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

Error missing(const std::string& folder, const std::string& what) {
  return Error(ErrorCode::data, "imagefolder: " + what + "; lay the images out as " + folder +
                                    "/train/<class>/<image>.jpg and " + folder +
                                    "/val/<class>/<image>.jpg, set --data-path to their folder, or train on "
                                    "random images: --dataset synthetic --input 3,224,224 --classes 1000");
}

bool has_parts(const fs::path& folder) {
  return is_folder(folder / "train") && (is_folder(folder / "val") || is_folder(folder / "test"));
}

// The folder with train/ and val/ that was probably meant by `folder`: up to two levels above it, or the only folder
// inside it. Empty if no such folder exists.
std::string meant(const std::string& folder) {
  std::error_code error;
  fs::path above = fs::absolute(folder, error).lexically_normal();
  if (error) return "";
  if (!above.has_filename()) above = above.parent_path();  // it ended in a slash
  for (int level = 0; level < 2; ++level) {
    above = above.parent_path();
    if (has_parts(above)) return above.string();
  }
  constexpr int kMostLooks = 1000;
  std::string inside;
  fs::directory_iterator entries(folder, error);
  for (int looks = 0; !error && entries != fs::directory_iterator() && looks < kMostLooks;
       entries.increment(error), ++looks) {
    if (!has_parts(entries->path())) continue;
    if (!inside.empty()) return "";
    inside = entries->path().string();
  }
  return inside;
}

// A folder whose name is another spelling, such as Val/ or validation/. Empty if no such folder exists.
std::string other_spelling(const fs::path& root, const std::vector<std::string>& names) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    std::string name = entry.path().filename().string(), lower = name;
    for (char& letter : lower)
      if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    if (std::find(names.begin(), names.end(), lower) != names.end() && is_folder(entry.path())) return name;
  }
  return "";
}

void require_parts(const std::string& folder) {
  const fs::path root = folder;
  std::error_code ignored;
  if (!is_folder(root))
    throw missing(folder, fs::exists(root, ignored) ? folder + " is not a folder" : "no folder " + folder);
  const bool has_train = is_folder(root / "train");
  if (has_parts(root)) return;
  if (const std::string other = has_train ? "" : meant(folder); !other.empty())
    throw Error(ErrorCode::data, "imagefolder: " + folder + " has no train/, but " + other +
                                     " has train/ and val/ (or test/); give that folder: --data-path " +
                                     path_argument(other));
  const std::string found = has_train ? other_spelling(root, {"val", "valid", "validation", "test", "testing"})
                                      : other_spelling(root, {"train", "training"});
  const std::string lacks = folder + (has_train ? " has neither val/ nor test/" : " has no train/");
  if (!found.empty())
    throw Error(ErrorCode::data,
                "imagefolder: " + lacks + ", but " + found + "/; rename it to " + (has_train ? "val/" : "train/"));
  throw missing(folder, lacks);
}

}  // namespace

std::shared_ptr<const Dataset> image_dataset(const std::string& folder, ImageList list, std::int64_t side) {
  return std::make_shared<ImageFolder>(folder, std::move(list), side);
}

namespace datasets {

DatasetPair image_folder(const std::string& folder, std::int64_t side) {
  if (side < 1 || side > 4096)
    throw Error(ErrorCode::usage,
                "imagefolder: the side of the images is " + std::to_string(side) + "; give 1 to 4096");
  const fs::path root = folder, train = root / "train";
  const fs::path test = is_folder(root / "val") ? root / "val" : root / "test";
  require_parts(folder);
  ImageList train_list = list_images(train.string(), nullptr);
  ImageList test_list = list_images(test.string(), &train_list.classes);
  return {image_dataset(train.string(), std::move(train_list), side),
          image_dataset(test.string(), std::move(test_list), side)};
}

}  // namespace datasets
}  // namespace dp
