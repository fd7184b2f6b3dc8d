// Lists the images in a folder of class folders.
#include <algorithm>
#include <filesystem>

#include "data/datasets/image_folder.h"
#include "dp/error.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

Error unusable(const std::string& path, const std::string& what) { return Error(ErrorCode::data, path + ": " + what); }

// Sorted names of the entries of `folder` for which wanted(entry) is true, without names that begin with a dot.
template <typename Wanted>
std::vector<std::string> names_in(const fs::path& folder, const Wanted& wanted) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::string name = entries->path().filename().string();
    if (!name.starts_with('.') && wanted(*entries)) names.push_back(std::move(name));
  }
  if (error) throw unusable(folder.string(), "cannot be listed (" + error.message() + "); make it a readable folder");
  std::sort(names.begin(), names.end());
  return names;
}

// In lower case: ".jpg".
std::string ending_of(const fs::directory_entry& entry) {
  std::string ending = entry.path().extension().string();
  for (char& letter : ending)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return ending;
}

bool is_folder_entry(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_directory(ignored);
}

}  // namespace

std::string ImageList::path(const std::string& folder, std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  const std::size_t begin = i == 0 ? 0 : ends[i - 1];
  std::string path = folder;
  path.append("/").append(classes[static_cast<std::size_t>(labels[i])]).append("/");
  return path.append(names, begin, ends[i] - begin);
}

ImageList list_images(const std::string& folder, const std::vector<std::string>* classes) {
  ImageList list;
  const std::vector<std::string> found = names_in(folder, is_folder_entry);
  list.classes = classes ? *classes : found;
  for (const std::string& name : found) {
    const auto known = std::lower_bound(list.classes.begin(), list.classes.end(), name);
    if (known == list.classes.end() || *known != name)
      throw unusable(folder + "/" + name,
                     "a class without training images; add some under train/, or remove this folder");
    const std::vector<std::string> images = names_in(fs::path(folder) / name, [&](const fs::directory_entry& entry) {
      const std::string ending = ending_of(entry);
      if (ending == ".jpg" || ending == ".jpeg" || ending == ".png") return true;
      const std::string kind = is_folder_entry(entry) ? "folders" : ending.empty() ? "without an ending" : ending;
      constexpr std::size_t kMostKinds = 1000;  // names such as shot.000123 have an ending each
      if (list.passed_over.size() < kMostKinds || list.passed_over.contains(kind)) ++list.passed_over[kind];
      return false;
    });
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
