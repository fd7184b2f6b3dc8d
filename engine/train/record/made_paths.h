// Files and folders that a run created, removed again if the run does not begin.
#pragma once

#include <string>
#include <vector>

namespace dp {

// The destructor removes the recorded files and empty folders in reverse order, unless keep() was called.
class MadePaths {
 public:
  MadePaths() = default;
  ~MadePaths();
  MadePaths(const MadePaths&) = delete;
  MadePaths& operator=(const MadePaths&) = delete;

  // Creates the folder and its parents, and records those that did not exist. They survive a power loss.
  // Returns errno on failure, else 0.
  int make_folders(const std::string& path);
  void note_unless_there(const std::string& file);  // call it before writing the file
  void keep() { paths_.clear(); }

 private:
  std::vector<std::string> paths_;
};

}  // namespace dp
