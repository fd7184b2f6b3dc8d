#include "elf_file.h"

#include <elf.h>

#include <cstring>
#include <stdexcept>

#include "support/temporary_folder.h"

namespace dp::test {
namespace {

// `count` values at `offset`.
template <typename Value>
std::vector<Value> values_at(const std::string& bytes, std::size_t offset, std::size_t count) {
  if (offset > bytes.size() || count > (bytes.size() - offset) / sizeof(Value))
    throw std::runtime_error("a cut ELF file");
  std::vector<Value> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data() + offset, count * sizeof(Value));
  return values;
}

std::string text_at(const std::string& bytes, std::size_t offset) {
  return offset < bytes.size() ? std::string(bytes.c_str() + offset) : std::string();
}

std::vector<std::string> elements(const std::string& list) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    found.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

void add_imports(const std::string& bytes, const Elf64_Ehdr& header, const Elf64_Shdr& symbols,
                 std::set<std::string>& imports) {
  const auto sections = values_at<Elf64_Shdr>(bytes, header.e_shoff, header.e_shnum);
  const std::size_t names = sections.at(symbols.sh_link).sh_offset;
  for (const Elf64_Sym& symbol : values_at<Elf64_Sym>(bytes, symbols.sh_offset, symbols.sh_size / sizeof(Elf64_Sym)))
    if (symbol.st_shndx == SHN_UNDEF) imports.insert(text_at(bytes, names + symbol.st_name));
}

}  // namespace

std::optional<ElfFile> read_elf(const std::string& path) {
  const std::string bytes = read_text(path);
  if (!bytes.starts_with(ELFMAG) || bytes.size() < sizeof(Elf64_Ehdr) || bytes[EI_CLASS] != ELFCLASS64)
    return std::nullopt;
  const auto header = values_at<Elf64_Ehdr>(bytes, 0, 1).front();
  if (header.e_type != ET_DYN && header.e_type != ET_EXEC) return std::nullopt;
  const auto segments = values_at<Elf64_Phdr>(bytes, header.e_phoff, header.e_phnum);
  const auto offset_of = [&](std::size_t address) {
    for (const Elf64_Phdr& segment : segments)
      if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address < segment.p_vaddr + segment.p_filesz)
        return address - segment.p_vaddr + segment.p_offset;
    throw std::runtime_error("an address outside of an ELF file");
  };
  ElfFile file;
  file.position_independent = header.e_type == ET_DYN;
  for (const Elf64_Shdr& section : values_at<Elf64_Shdr>(bytes, header.e_shoff, header.e_shnum))
    if (section.sh_type == SHT_DYNSYM) add_imports(bytes, header, section, file.imports);
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_GNU_RELRO) file.relocations_read_only = true;
    if (segment.p_type == PT_GNU_STACK) file.executable_stack = (segment.p_flags & PF_X) != 0;
    if (segment.p_type == PT_INTERP) {
      file.program = true;
      file.needed.push_back(text_at(bytes, segment.p_offset));
    }
    if (segment.p_type != PT_DYNAMIC) continue;
    const auto entries = values_at<Elf64_Dyn>(bytes, segment.p_offset, segment.p_filesz / sizeof(Elf64_Dyn));
    std::size_t strings = 0;
    for (const Elf64_Dyn& entry : entries)
      if (entry.d_tag == DT_STRTAB) strings = offset_of(entry.d_un.d_ptr);
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_NULL) break;
      switch (entry.d_tag) {
        case DT_BIND_NOW: file.bind_now = true; break;
        case DT_FLAGS: file.bind_now = file.bind_now || (entry.d_un.d_val & DF_BIND_NOW) != 0; break;
        case DT_FLAGS_1: file.bind_now = file.bind_now || (entry.d_un.d_val & DF_1_NOW) != 0; break;
        case DT_RPATH:
        case DT_RUNPATH:
          for (const std::string& element : elements(text_at(bytes, strings + entry.d_un.d_val)))
            file.run_path.push_back(element);
          break;
        case DT_NEEDED:
        case DT_AUXILIARY:
        case DT_FILTER:
        case DT_AUDIT:
        case DT_DEPAUDIT: file.needed.push_back(text_at(bytes, strings + entry.d_un.d_val)); break;
      }
    }
  }
  return file;
}

std::vector<std::string> relative_places(const ElfFile& file) {
  std::vector<std::string> found;
  for (const std::string& folder : file.run_path)
    if (!folder.starts_with('/') && !folder.starts_with("$ORIGIN") && !folder.starts_with("${ORIGIN}"))
      found.push_back("'" + folder + "'");
  for (const std::string& library : file.needed)
    if (!library.starts_with('/') && library.find('/') != std::string::npos) found.push_back("'" + library + "'");
  return found;
}

}  // namespace dp::test
