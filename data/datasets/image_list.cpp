// Lists the images in a folder of class folders.
#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <string_view>

#include "data/datasets/image_folder.h"
#include "dp/error.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

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
      if (ending == ".jpg" || ending == ".jpeg" || ending == ".png") {
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

std::string ImageList::name(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  const std::size_t begin = i == 0 ? 0 : ends[i - 1];
  return names.substr(begin, ends[i] - begin);
}

std::string ImageList::path(const std::string& folder, std::int64_t index) const {
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
                     "a class without images (.jpg, .jpeg or .png); add some, or remove this folder");
    list.labels.insert(list.labels.end(), images.size(), static_cast<std::int32_t>(known - list.classes.begin()));
    for (const std::string& image : images) list.ends.push_back(list.names.append(image).size());
  }
  if (list.labels.empty())
    throw unusable(folder, "no images in it; lay them out as " + folder + "/<class>/<image>.jpg");
  return list;
}

}  // namespace dp
