// SPDX-License-Identifier: Apache-2.0
//
// Certificates and keys from files, checked before anybody uses them: that they can be read, that
// key and certificate belong together. So that a bad file is an error at the start or in a reload,
// never a server without a certificate.
//   Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "agent/base/result.h"

namespace ncclscope::agent {

struct TlsFiles {
  std::string certificate;  // PEM, leaf first, then intermediates
  std::string key;          // PEM, unencrypted
  std::string client_ca;    // PEM; empty: no client certificates
};

/// Contents of TlsFiles, checked.
struct TlsMaterial {
  std::string certificate, key, client_ca;
  std::int64_t not_after_seconds = 0;  // when the leaf expires, since the Unix epoch

  bool operator==(const TlsMaterial&) const = default;
};

/// Errors name the file. An expired certificate is none: see expiry_warning().
[[nodiscard]] Result<TlsMaterial> read_tls_files(const TlsFiles& files);

/// Empty, or that the certificate of `files` has expired or does so within a week.
[[nodiscard]] std::string expiry_warning(const TlsFiles& files, const TlsMaterial& material,
                                         std::int64_t now_seconds);

/// Reads a whole file of at most 1 MiB.
[[nodiscard]] Result<std::string> read_small_file(const std::string& path);

/// Changes when one of the files is written, replaced or removed. Empty paths are left out.
[[nodiscard]] std::string stamp_of_files(std::span<const std::string> paths);

}  // namespace ncclscope::agent
