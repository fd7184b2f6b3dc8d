// What the dynamic loader and the kernel read in a program or shared library (64-bit ELF of this machine).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dp::test {

struct ElfFile {
  std::vector<std::string> run_path;  // the elements of DT_RUNPATH and DT_RPATH, empty ones too
  std::vector<std::string> needed;    // DT_NEEDED, DT_AUXILIARY, DT_FILTER, DT_AUDIT and DT_DEPAUDIT, and the loader
  std::set<std::string> imports;      // functions and data of other libraries
  bool program = false;               // it names a loader
  bool position_independent = false;
  bool relocations_read_only = false;  // together with bind_now: full RELRO
  bool bind_now = false;
  bool executable_stack = true;
};

// Empty if the file is no program or shared library.
std::optional<ElfFile> read_elf(const std::string& path);

// The elements of the run path and the libraries that depend on the working folder, in quotes.
std::vector<std::string> relative_places(const ElfFile& file);

}  // namespace dp::test
