// SPDX-License-Identifier: Apache-2.0
//
// Certificates for a test, made by openssl while it runs: nothing that expires lies in the
// repository.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace ncclscope::tests {

/// Runs a shell command; throws if it fails.
inline void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0)  // NOLINT(concurrency-mt-unsafe,cert-env33-c)
    throw std::runtime_error("failed: " + command);
}

/// An authority, <directory>/<name>.crt and .key, that signs certificates beside it.
class Authority {
 public:
  Authority(std::string directory, std::string name)
      : directory_(std::move(directory)), name_(std::move(name)) {
    shell(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj '/CN=" +
        name_ + "' -keyout " + file(name_, ".key") + " -out " + file(name_, ".crt") +
        " 2>/dev/null");
  }

  /// <directory>/<file>.crt and .key with that common name and names such as
  /// "DNS:localhost,IP:127.0.0.1". `expired`: it was valid, long ago.
  void sign(const std::string& file_name, const std::string& common_name,
            const std::string& alternative_names, bool expired = false) const {
    const std::string request = file(file_name, ".csr");
    shell("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj '/CN=" +
          common_name + "' -keyout " + file(file_name, ".key") + " -out " + request +
          " 2>/dev/null");
    const std::string extensions = file(file_name, ".ext");
    shell("printf 'subjectAltName=" + alternative_names +
          "\\nextendedKeyUsage=serverAuth,clientAuth\\n' > " + extensions);
    // x509 cannot date into the past; ca can.
    if (!expired) {
      shell("openssl x509 -req -days 2 -in " + request + " -CA " + certificate() + " -CAkey " +
            file(name_, ".key") + " -CAcreateserial -extfile " + extensions + " -out " +
            file(file_name, ".crt") + " 2>/dev/null");
      return;
    }
    const std::string database = file(file_name, ".database");
    const std::string config = file(file_name, ".cnf");
    shell(": > " + database + "; printf '[ca]\\ndefault_ca=a\\n[a]\\ndatabase=" + database +
          "\\nnew_certs_dir=" + directory_ +
          "\\ndefault_md=sha256\\nrand_serial=yes\\npolicy=p\\n[p]\\ncommonName=supplied\\n' > " +
          config + "; openssl ca -batch -notext -config " + config +
          " -startdate 20200101000000Z -enddate 20200201000000Z -cert " + certificate() +
          " -keyfile " + file(name_, ".key") + " -extfile " + extensions + " -in " + request +
          " -out " + file(file_name, ".crt") + " 2>/dev/null");
  }

  [[nodiscard]] std::string certificate() const { return file(name_, ".crt"); }

 private:
  [[nodiscard]] std::string file(const std::string& name, const char* suffix) const {
    return directory_ + "/" + name + suffix;
  }
  std::string directory_, name_;
};

}  // namespace ncclscope::tests
