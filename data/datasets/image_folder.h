// Labelled images in folders named after their classes, decoded whenever they are read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dp/dataset.h"

namespace dp {

// The names of one part; a name costs its bytes and 12 more.
struct ImageList {
  std::vector<std::string> classes;  // sorted by bytes
  std::vector<std::int32_t> labels;  // of every image, an index of `classes`
  std::string names;                 // of every image, in its class's folder, joined
  std::vector<std::uint64_t> ends;   // of every name in `names`

  std::string path(const std::string& folder, std::int64_t index) const;
};

// The images in <folder>/<class>/: .jpg, .jpeg and .png in any case, sorted by class and name; what begins with a dot is
// passed over. `classes` are the training part's, and a folder that is none of them is refused; null: every folder is
// one and has images. Error(data).
ImageList list_images(const std::string& folder, const std::vector<std::string>* classes);

// Reads with buffers of the calling thread's that grow to the largest image it meets, and shrink after a very large one.
std::shared_ptr<const Dataset> image_dataset(const std::string& folder, ImageList list, std::int64_t side);

}  // namespace dp
