#include "folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace kvbound::fuzz {

Folder::Folder() : path_("/dev/shm/kvbound-fuzz-XXXXXX") {
  if (!mkdtemp(path_.data())) throw std::runtime_error("cannot make a folder in /dev/shm");
}

Folder::~Folder() { std::filesystem::remove_all(path_); }

void Folder::empty() {
  for (; !made_.empty(); made_.pop_back()) std::remove(made_.back().c_str());
}

std::string Folder::write(const std::string& name, std::string_view bytes) {
  std::string path = path_ + "/" + name;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const ssize_t written = ::write(file, bytes.data(), bytes.size());
  if (close(file) != 0 || written != std::ssize(bytes)) throw std::runtime_error("cannot write " + path);
  made_.push_back(path);
  return path;
}

bool Folder::make_folder(const std::string& name) {
  const std::string path = path_ + "/" + name;
  if (mkdir(path.c_str(), 0700) != 0) return false;
  made_.push_back(path);
  return true;
}

}  // namespace kvbound::fuzz
