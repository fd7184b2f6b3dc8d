// Images in folders named after their classes, listed in a file with a class or with targets, or in tar files. Each
// read decodes the image.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dp/dataset.h"

namespace dp {

// The file names of one part (train or val). Each takes its length plus 12 bytes.
struct ImageList {
  std::vector<std::string> classes;  // of folders: sorted by bytes
  std::vector<std::int32_t> labels;  // per image: index into `classes`
  std::string names;                // paths of all images, below their class's folder if in_class_folders; concatenated
  std::vector<std::uint64_t> ends;  // per image: end of its name in `names`
  bool in_class_folders = true;     // else paths are absolute, or relative to the folder
  std::size_t targets_each = 0;     // 0: the images have classes
  std::vector<float> targets;       // targets_each per image
  std::vector<float> weights;       // per image, or none
  // Images in archives: `places` says where each image is, and its name is that in the archive. Otherwise empty.
  struct Place {
    std::uint32_t shard;
    std::uint64_t begin, bytes;
  };
  std::vector<std::string> shards;
  std::vector<Place> places;
  // Other files in the class folders, counted by their ending in lower case.
  std::map<std::string, std::int64_t> passed_over;

  std::string name(std::int64_t index) const;
  std::string path(const std::string& folder, std::int64_t index) const;  // for messages, if it is in a shard
};

// Sorts the classes by bytes, or by value if all are whole numbers, and numbers the labels accordingly.
void sort_classes(ImageList& list);

// Lists the .jpg, .jpeg, .png and .webp files (any case) in <folder>/<class>/ and the folders in it, sorted by class,
// folder and name, as torchvision's ImageFolder does. Links are followed. Names that begin with a dot are ignored.
// `classes`: the classes of the training part; other folders are rejected. Null: every folder is a class and must have
// images. Error(data).
ImageList list_images(const std::string& folder, const std::vector<std::string>* classes);

// Error(usage), beginning with the data set's name, for a side outside 1 to 4096, or a part outside 0.05 to 1.
void require_size(const std::string& dataset, std::int64_t side, const Resizing& resizing);

// Reads with per-thread buffers that grow to the largest image. File and pixel buffers over 32 MiB are freed.
std::shared_ptr<const Dataset> image_dataset(const std::string& folder, ImageList list, std::int64_t side,
                                             const Resizing& resizing);

}  // namespace dp
