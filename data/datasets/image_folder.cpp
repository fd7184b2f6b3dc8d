// The data set "imagefolder": a folder of images for each class.
#include "data/datasets/image_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "data/datasets/prepare_image.h"
#include "data/formats/rgb_image.h"
#include "data/formats/tar_index.h"
#include "data/threads.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "dp/image.h"
#include "dp/shell.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::string folder, ImageList list, std::int64_t side, const Resizing& resizing)
      : folder_(std::move(folder)),
        list_(std::move(list)),
        side_(side),
        resizing_(resizing),
        normalization_{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}} {}

  std::int64_t size() const override { return static_cast<std::int64_t>(list_.labels.size()); }
  Shape image_shape() const override { return Shape{3, side_, side_}; }
  std::int64_t classes() const override {
    return static_cast<std::int64_t>(has_targets() ? list_.targets_each : list_.classes.size());
  }
  bool has_targets() const override { return list_.targets_each > 0; }
  void targets(std::int64_t index, std::span<float> out) const override {
    std::copy_n(list_.targets.data() + static_cast<std::size_t>(index) * list_.targets_each, out.size(), out.data());
  }
  bool has_weights() const override { return !list_.weights.empty(); }
  float weight(std::int64_t index) const override {
    return has_weights() ? list_.weights[static_cast<std::size_t>(index)] : 1;
  }
  std::vector<std::string> class_names() const override { return list_.classes; }
  const Normalization& normalization() const override { return normalization_; }
  std::optional<Resizing> resizing() const override { return resizing_; }
  std::int32_t label(std::int64_t index) const override { return list_.labels[static_cast<std::size_t>(index)]; }
  Augmentation augmentation() const override { return {.flip = Flip::random}; }
  bool varies() const override { return true; }
  // The path below the class's folder or in the list, and the size: "a.png 1234".
  std::string sample_id(std::int64_t index) const override {
    std::error_code error;
    const std::uintmax_t size = list_.places.empty() ? fs::file_size(list_.path(folder_, index), error)
                                                     : list_.places[static_cast<std::size_t>(index)].bytes;
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
    thread_local ImageWorkplace mine;
    read_encoded(index, mine.file);
    decode_image(list_.path(folder_, index), mine.file, mine.image);
    if (random) {
      const RgbView whole{mine.image.pixels.data(), mine.image.width, mine.image.height, 3 * mine.image.width};
      const Region part = random_resized_crop(whole.width, whole.height, *random);
      mine.resizer.resize(whole.part(part), side_, side_, {0, 0, side_, side_}, resizing_.interpolation, out);
    } else {
      mine.prepare(resizing_, image_shape(), out);
    }
    mine.shrink();
  }

 private:
  void read_encoded(std::int64_t index, std::vector<std::uint8_t>& bytes) const {
    if (list_.places.empty()) return read_image_file(list_.path(folder_, index), bytes);
    const ImageList::Place& place = list_.places[static_cast<std::size_t>(index)];
    require_readable_size(list_.path(folder_, index), place.bytes);
    bytes.resize(place.bytes);
    PieceReader(list_.shards[place.shard]).read(place.begin, bytes);
  }

  // The largest of 16 files, spread evenly over the list. Unreadable files are ignored.
  std::size_t most_of_sample() const {
    constexpr std::int64_t kSampled = 16;
    std::size_t most = 0;
    std::vector<std::uint8_t> file;
    for (std::int64_t i = 0; i < std::min(kSampled, size()); ++i) try {
        read_encoded(size() * i / std::min(kSampled, size()), file);
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
  Resizing resizing_;
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

void require_size(const std::string& dataset, std::int64_t side, const Resizing& resizing) {
  if (side < 1 || side > 4096)
    throw Error(ErrorCode::usage, dataset + ": the side of the images is " + std::to_string(side) + "; give 1 to 4096");
  if (!(resizing.crop_pct >= 0.05 && resizing.crop_pct <= 1))
    throw Error(ErrorCode::usage, dataset + ": the central crop has " + std::to_string(resizing.crop_pct) +
                                      " of the image's shorter side; give 0.05 to 1");
}

std::shared_ptr<const Dataset> image_dataset(const std::string& folder, ImageList list, std::int64_t side,
                                             const Resizing& resizing) {
  return std::make_shared<ImageFolder>(folder, std::move(list), side, resizing);
}

namespace datasets {

DatasetPair image_folder(const std::string& folder, std::int64_t side, const Resizing& resizing) {
  require_size("imagefolder", side, resizing);
  const fs::path root = folder, train = root / "train";
  const fs::path test = is_folder(root / "val") ? root / "val" : root / "test";
  require_parts(folder);
  ImageList train_list = list_images(train.string(), nullptr);
  ImageList test_list = list_images(test.string(), &train_list.classes);
  return {image_dataset(train.string(), std::move(train_list), side, resizing),
          image_dataset(test.string(), std::move(test_list), side, resizing)};
}

std::shared_ptr<const Dataset> image_folder_train(const std::string& folder, std::int64_t side,
                                                  const Resizing& resizing) {
  require_size("imagefolder", side, resizing);
  const std::string train = (fs::path(folder) / "train").string();
  if (!is_folder(train)) require_parts(folder);  // says what is wrong
  return image_dataset(train, list_images(train, nullptr), side, resizing);
}

}  // namespace datasets

namespace {

Error unusable(const std::string& path, const std::string& what) { return Error(ErrorCode::data, path + ": " + what); }

// Sorted names of the folders and of the other entries in `folder`, without names that begin with a dot.
struct Entries {
  std::vector<std::string> folders, files;
};

Entries entries_in(const std::string& folder) {
  Entries found;
  std::error_code error, ignored;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::string name = entries->path().filename().string();
    if (name.starts_with('.')) continue;
    (entries->is_directory(ignored) ? found.folders : found.files).push_back(std::move(name));
  }
  if (error) throw unusable(folder, "cannot be listed (" + error.message() + "); make it a readable folder");
  std::sort(found.folders.begin(), found.folders.end());
  std::sort(found.files.begin(), found.files.end());
  return found;
}

// In lower case: ".jpg".
std::string ending_of(const std::string& name) {
  std::string ending = fs::path(name).extension().string();
  for (char& letter : ending)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return ending;
}

// A folder of a class, at any depth.
struct Subfolder {
  std::string below;  // path below the class's folder, with a slash at its end; empty for that folder
  std::vector<std::string> files;
  dev_t device = 0;
  ino_t inode = 0;
  const Subfolder* in = nullptr;
};

// A link that leads to a folder above it would repeat the images without end.
void refuse_loop(const std::string& path, const Subfolder& folder) {
  for (const Subfolder* above = folder.in; above != nullptr; above = above->in)
    if (above->device == folder.device && above->inode == folder.inode)
      throw unusable(path, "a link to a folder that contains it; remove the link");
}

// The folder of a class and all folders in it, links included, in the order of torchvision's ImageFolder: by path.
std::deque<Subfolder> walk(const std::string& class_folder) {
  constexpr std::size_t kMostFolders = 100'000;
  std::deque<Subfolder> found(1);  // keeps addresses
  for (std::size_t i = 0; i < found.size(); ++i) {
    Subfolder& folder = found[i];
    const std::string path = class_folder + "/" + folder.below;
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) folder.device = status.st_dev, folder.inode = status.st_ino;
    refuse_loop(path, folder);
    Entries entries = entries_in(path);
    folder.files = std::move(entries.files);
    if (found.size() + entries.folders.size() > kMostFolders)
      throw unusable(class_folder, "has more than 100,000 folders in it; remove folders, or links that repeat them");
    for (const std::string& name : entries.folders) found.push_back({folder.below + name + "/", {}, 0, 0, &folder});
  }
  // By path without the slash at its end, as torchvision compares.
  const auto key = [](const Subfolder& folder) {
    return std::string_view(folder.below).substr(0, folder.below.empty() ? 0 : folder.below.size() - 1);
  };
  std::sort(found.begin(), found.end(), [&](const Subfolder& a, const Subfolder& b) { return key(a) < key(b); });
  return found;
}

// Images below the class's folder. Counts the other files by their endings.
std::vector<std::string> images_in(const std::string& class_folder, std::map<std::string, std::int64_t>& passed_over) {
  std::vector<std::string> images;
  for (const Subfolder& folder : walk(class_folder))
    for (const std::string& name : folder.files) {
      const std::string ending = ending_of(name);
      if (ending == ".jpg" || ending == ".jpeg" || ending == ".png" || ending == ".webp") {
        images.push_back(folder.below + name);
        continue;
      }
      const std::string kind = ending.empty() ? "without an ending" : ending;
      constexpr std::size_t kMostKinds = 1000;  // names such as shot.000123 have an ending each
      if (passed_over.size() < kMostKinds || passed_over.contains(kind)) ++passed_over[kind];
    }
  return images;
}

}  // namespace

std::vector<std::string> image_files(const std::string& folder) {
  std::map<std::string, std::int64_t> passed_over;
  std::vector<std::string> files = images_in(folder, passed_over);
  for (std::string& file : files) file.insert(0, folder.ends_with('/') ? folder : folder + "/");
  return files;
}

std::string ImageList::name(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  const std::size_t begin = i == 0 ? 0 : ends[i - 1];
  return names.substr(begin, ends[i] - begin);
}

std::string ImageList::path(const std::string& folder, std::int64_t index) const {
  if (!places.empty()) return shards[places[static_cast<std::size_t>(index)].shard] + ": " + name(index);
  if (!in_class_folders) {
    std::string own = name(index);
    return own.starts_with('/') ? own : folder + "/" + own;
  }
  return folder + "/" + classes[static_cast<std::size_t>(labels[static_cast<std::size_t>(index)])] + "/" + name(index);
}

ImageList list_images(const std::string& folder, const std::vector<std::string>* classes) {
  ImageList list;
  const std::vector<std::string> found = entries_in(folder).folders;
  list.classes = classes ? *classes : found;
  for (const std::string& name : found) {
    const auto known = std::lower_bound(list.classes.begin(), list.classes.end(), name);
    if (known == list.classes.end() || *known != name)
      throw unusable(folder + "/" + name,
                     "a class without training images; add some under train/, or remove this folder");
    const std::vector<std::string> images = images_in(folder + "/" + name, list.passed_over);
    if (images.empty() && !classes)
      throw unusable(folder + "/" + name,
                     "a class without images (.jpg, .jpeg, .png or .webp); add some, or remove this folder");
    list.labels.insert(list.labels.end(), images.size(), static_cast<std::int32_t>(known - list.classes.begin()));
    for (const std::string& image : images) list.ends.push_back(list.names.append(image).size());
  }
  if (list.labels.empty())
    throw unusable(folder, "no images in it; lay them out as " + folder + "/<class>/<image>.jpg");
  return list;
}

std::shared_ptr<const ImageSet> read_images(const Dataset& dataset, int threads) {
  if (dataset.varies())
    throw Error(ErrorCode::usage, "a dataset that changes its images on each read cannot be stored as bytes");
  const Normalization& normalization = dataset.normalization();
  const Shape shape = dataset.image_shape();
  const auto channels = static_cast<std::size_t>(shape.rank() == 3 ? shape[0] : 0);
  if (channels == 0 || normalization.mean.size() != channels || normalization.std.size() != channels ||
      !std::all_of(normalization.std.begin(), normalization.std.end(), [](float std) { return std > 0; }))
    throw Error(ErrorCode::usage, "images of shape " + to_string(shape) +
                                      " need three dimensions, and a mean and a positive deviation for each channel");
  ImageSet set{Tensor(shape.prepended(dataset.size()), DType::u8), normalization, dataset.augmentation()};
  auto* const bytes = set.images.data<std::uint8_t>();
  const auto image = static_cast<std::size_t>(shape.numel());
  for_ranges(dataset.size(), std::max(threads, 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      dataset.read(i, {bytes + static_cast<std::size_t>(i) * image, image}, nullptr);
  });
  return std::make_shared<const ImageSet>(std::move(set));
}

}  // namespace dp
