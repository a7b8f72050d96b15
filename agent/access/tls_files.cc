// SPDX-License-Identifier: Apache-2.0
//
// GnuTLS judges; its credentials object is thrown away.
#include "agent/access/tls_files.h"

#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {
namespace {

using Credentials = std::unique_ptr<gnutls_certificate_credentials_st,
                                    decltype(&gnutls_certificate_free_credentials)>;

gnutls_datum_t datum(const std::string& text) {
  return {reinterpret_cast<unsigned char*>(const_cast<char*>(text.data())),
          static_cast<unsigned>(text.size())};
}

/// Of the first certificate; 0 if that cannot be read.
std::int64_t expiration_time(const std::string& pem) {
  gnutls_x509_crt_t certificate = nullptr;
  if (gnutls_x509_crt_init(&certificate) != 0) return 0;
  const gnutls_datum_t text = datum(pem);
  const std::int64_t time = gnutls_x509_crt_import(certificate, &text, GNUTLS_X509_FMT_PEM) == 0
                                ? std::int64_t{gnutls_x509_crt_get_expiration_time(certificate)}
                                : 0;
  gnutls_x509_crt_deinit(certificate);
  return time;
}

}  // namespace

Result<std::string> read_small_file(const std::string& path) {
  constexpr std::size_t kLimit = 1 << 20;
  const ScopedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd.valid()) return Status::system("cannot open " + path);
  std::string out;
  char part[16384];
  for (;;) {
    const ssize_t got = ::read(fd.get(), part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::system("cannot read " + path);
    if (got == 0) return out;
    out.append(part, static_cast<std::size_t>(got));
    if (out.size() > kLimit) return Status::invalid(path + " is larger than 1 MiB");
  }
}

Result<TlsMaterial> read_tls_files(const TlsFiles& files) {
  TlsMaterial out;
  for (const auto& [path, text] :
       {std::pair(&files.certificate, &out.certificate), {&files.key, &out.key}}) {
    Result<std::string> read = read_small_file(*path);
    if (!read.ok()) return read.status();
    *text = std::move(read).value();
  }
  gnutls_certificate_credentials_t raw = nullptr;
  if (gnutls_certificate_allocate_credentials(&raw) != 0)
    return Status(ErrorCode::kSystem, "GnuTLS: out of memory");
  const Credentials credentials(raw, &gnutls_certificate_free_credentials);
  const gnutls_datum_t certificate = datum(out.certificate);
  const gnutls_datum_t key = datum(out.key);
  if (const int error = gnutls_certificate_set_x509_key_mem2(credentials.get(), &certificate, &key,
                                                             GNUTLS_X509_FMT_PEM, nullptr, 0);
      error < 0) {
    return Status::invalid(concat("certificate ", files.certificate, " with key ", files.key, ": ",
                                  gnutls_strerror(error),
                                  " (both must be PEM, and belong together)"));
  }
  out.not_after_seconds = expiration_time(out.certificate);
  if (files.client_ca.empty()) return out;

  Result<std::string> read = read_small_file(files.client_ca);
  if (!read.ok()) return read.status();
  out.client_ca = std::move(read).value();
  const gnutls_datum_t authorities = datum(out.client_ca);
  const int count =
      gnutls_certificate_set_x509_trust_mem(credentials.get(), &authorities, GNUTLS_X509_FMT_PEM);
  if (count <= 0) {
    return Status::invalid(concat("client CA ", files.client_ca, " holds no certificate in PEM: ",
                                  gnutls_strerror(count < 0 ? count : 0)));
  }
  return out;
}

std::string expiry_warning(const TlsFiles& files, const TlsMaterial& material,
                           std::int64_t now_seconds) {
  constexpr std::int64_t kDay = 86'400;
  const std::int64_t left = material.not_after_seconds - now_seconds;
  if (left <= 0) return concat("the certificate ", files.certificate, " has expired");
  if (left > 7 * kDay) return {};
  return concat("the certificate ", files.certificate, " expires in ", left / 3600, " hours");
}

std::string stamp_of_files(std::span<const std::string> paths) {
  std::string out;
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
      out += concat("absent ", errno, ";");
      continue;
    }
    out += concat(info.st_dev, ":", info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".",
                  info.st_mtim.tv_nsec, ";");
  }
  return out;
}

}  // namespace ncclscope::agent
