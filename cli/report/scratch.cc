// SPDX-License-Identifier: Apache-2.0
#include "cli/report/scratch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace ncclscope::cli::report {
namespace {

[[noreturn]] void fail(const std::string& folder, const char* what) {
  const int error = errno;
  throw std::runtime_error(folder + ": " + what + ": " + std::generic_category().message(error) +
                           (error == ENOSPC || error == EDQUOT
                                ? " (what does not fit into memory goes there; see --memory)"
                                : ""));
}

}  // namespace

ScratchFile::ScratchFile(ScratchFile&& other) noexcept
    : folder_(std::move(other.folder_)),
      file_(std::exchange(other.file_, -1)),
      bytes_(std::exchange(other.bytes_, 0)) {}

ScratchFile& ScratchFile::operator=(ScratchFile&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ScratchFile::~ScratchFile() {
  if (file_ >= 0) ::close(file_);
}

void ScratchFile::create() {
  std::string path = folder_ + "/records-XXXXXX";
  file_ = ::mkostemp(path.data(), O_CLOEXEC);
  if (file_ < 0) fail(folder_, "no file can be made in it");
  ::unlink(path.c_str());
}

void ScratchFile::append(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  if (file_ < 0) create();
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(file_, at, bytes, static_cast<off_t>(bytes_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(folder_, "cannot be written");
    at += n;
    bytes -= static_cast<std::size_t>(n);
    bytes_ += static_cast<std::uint64_t>(n);
  }
}

void ScratchFile::read(std::uint64_t offset, void* into, std::size_t bytes) const {
  char* at = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t n = ::pread(file_, at, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) fail(folder_, "cannot be read");
    at += n;
    bytes -= static_cast<std::size_t>(n);
    offset += static_cast<std::uint64_t>(n);
  }
}

}  // namespace ncclscope::cli::report
