// SPDX-License-Identifier: Apache-2.0
#include "agent/export/web_access.h"

#include <gtest/gtest.h>

#include "agent/access/secrets.h"
#include "agent/access/web_config.h"

namespace ncclscope::agent {
namespace {

// Cost 4, so that tests are quick. "pass", as htpasswd (2y) and as libcrypt (2b) write it.
constexpr const char* kPass2y = "$2y$04$ABCDEFGHIJKLMNOPQRSTUuehC1EpP/PASx2IdPqZEHtFv7CrmycOO";
constexpr const char* kPass2b = "$2b$04$abcdefghijklmnopqrstuufznL8bkzdtHwLhca4To/v9Lo9bA7fR6";

TEST(Bcrypt, ChecksPasswords) {
  for (const char* hash : {kPass2y, kPass2b}) {
    EXPECT_TRUE(check_bcrypt_hash(hash).ok());
    EXPECT_TRUE(bcrypt_matches(hash, "pass"));
    EXPECT_FALSE(bcrypt_matches(hash, "Pass"));
    EXPECT_FALSE(bcrypt_matches(hash, ""));
    EXPECT_FALSE(bcrypt_matches(hash, std::string("pass\0word", 9)));
  }
  EXPECT_FALSE(bcrypt_matches("", "pass"));
  EXPECT_FALSE(bcrypt_matches("$2y$", "pass"));
}

TEST(Bcrypt, RefusesOtherHashes) {
  EXPECT_FALSE(check_bcrypt_hash("secret").ok());
  EXPECT_FALSE(check_bcrypt_hash("$6$rounds=5000$salt$hash").ok());
  std::string costly = kPass2y;
  costly.replace(4, 2, "31");
  EXPECT_NE(check_bcrypt_hash(costly).message().find("cost 31"), std::string::npos);
}

TEST(WebConfig, ReadsAllItsKeys) {
  const Result<WebConfig> read = parse_web_config(
      "# comment\n"
      "tls_server_config:\n"
      "  cert_file: server.crt\n"
      "  key_file: /etc/tls/server.key\n"
      "  client_auth_type: \"RequireAndVerifyClientCert\"\n"
      "  client_ca_file: ca.crt\n"
      "  min_version: TLS13\n"
      "basic_auth_users:\n"
      "  prometheus: " +
          std::string(kPass2y) +
          "\n"
          "bearer_tokens_sha256:\n"
          "  agent: " +
          sha256_hex("foo") + "\n",
      "/etc/ncclscope/web.yml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const WebConfig& c = read.value();
  ASSERT_TRUE(c.tls.has_value());
  EXPECT_EQ(c.tls->certificate, "/etc/ncclscope/server.crt");
  EXPECT_EQ(c.tls->key, "/etc/tls/server.key");
  EXPECT_EQ(c.tls->client_ca, "/etc/ncclscope/ca.crt");
  EXPECT_EQ(c.client_certificates, ClientCertificates::kRequired);
  EXPECT_TRUE(c.tls13_only);
  EXPECT_EQ(c.users.at("prometheus"), kPass2y);
  EXPECT_EQ(c.tokens.at("agent"), sha256_hex("foo"));
}

TEST(WebConfig, MayBeEmpty) {
  for (const char* text : {"", "# nothing\n", "tls_server_config:\nbasic_auth_users: {}\n"}) {
    const Result<WebConfig> read = parse_web_config(text, "w");
    if (text[0] == 't') {
      EXPECT_FALSE(read.ok()) << "a section without its files protects nothing";
    } else {
      EXPECT_TRUE(read.ok()) << read.status().message();
    }
  }
}

TEST(WebConfig, NamesFileAndLineOfEveryFault) {
  struct Case {
    std::string text;
    const char* message;
  };
  const std::string files = "tls_server_config:\n  cert_file: a\n  key_file: b\n";
  for (const Case& c : {
           Case{"\nbasic_auth:\n  a: b\n", "w.yml:3: unknown key 'basic_auth'"},
           Case{files + "  max_version: TLS12\n", "w.yml:4: unknown key 'max_version'"},
           Case{files + "  min_version: TLS10\n", "w.yml:4: min_version 'TLS10'"},
           Case{files + "  client_auth_type: RequestClientCert\n",
                "w.yml:4: client_auth_type 'RequestClientCert' is none of"},
           Case{files + "  client_auth_type: RequireAndVerifyClientCert\n", "client_ca_file"},
           Case{files + "  client_ca_file: c\n", "has no effect without client_auth_type"},
           Case{"tls_server_config:\n  cert_file: a\n", "needs cert_file and key_file"},
           Case{"basic_auth_users:\n  anna: secret\n", "w.yml:2: the password of user 'anna'"},
           Case{"bearer_tokens_sha256:\n  x: abc\n", "w.yml:2: the token 'x'"},
           Case{"basic_auth_users: [a]\n", "must be a mapping"},
           Case{"- a\n", "w.yml:1: "},
           Case{"a: b: c\n", "w.yml:1: "},
           Case{"basic_auth_users: {}\nbasic_auth_users: {}\n", "twice"},
       }) {
    const Result<WebConfig> read = parse_web_config(c.text, "w.yml");
    ASSERT_FALSE(read.ok()) << c.text;
    EXPECT_NE(read.status().message().find(c.message), std::string::npos)
        << read.status().message();
  }
}

TEST(Authorization, IsParsedStrictly) {
  const auto basic = parse_authorization("bAsIc  dTpw ");
  ASSERT_TRUE(basic.has_value());
  EXPECT_EQ(basic->scheme, "basic");
  EXPECT_EQ(basic->credentials, "dTpw");
  for (const char* bad : {"", " ", "Basic", "Basic ", " dTpw", "Basic a, Basic b", "Bearer a b"})
    EXPECT_FALSE(parse_authorization(bad).has_value()) << bad;
  const auto given = parse_basic_credentials("dTpwOnc=");  // u:p:w
  ASSERT_TRUE(given.has_value());
  EXPECT_EQ(given->user, "u");
  EXPECT_EQ(given->password, "p:w");
  for (const char* bad : {"", "dTp", "dT=w", "====", "dXA=", "d!pw"})
    EXPECT_FALSE(parse_basic_credentials(bad).has_value()) << bad;
}

class Web : public ::testing::Test {
 protected:
  Web() {
    config_.users["anna"] = kPass2y;
    config_.tokens["prometheus"] = sha256_hex("a-long-token");
    access_.set(config_);
  }
  int status(const std::string& authorization, const std::string& path = "/metrics",
             ClientCertificate certificate = ClientCertificate::kNone) {
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    request.client_certificate = certificate;
    if (!authorization.empty()) request.headers["Authorization"] = authorization;
    const auto refused = access_.refuse(request);
    return refused ? refused->status : 200;
  }
  static constexpr const char* kRight = "Basic YW5uYTpwYXNz";    // anna:pass
  static constexpr const char* kWrong = "Basic YW5uYTpwYXNX";    // anna:pasW
  static constexpr const char* kUnknown = "Basic Ym9iOnBhc3M=";  // bob:pass

  FakeClock clock_;
  WebConfig config_;
  WebAccess access_{clock_};
};

TEST_F(Web, LetsKnownUsersAndTokensPass) {
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status(kRight), 200);
  EXPECT_EQ(status(kWrong), 401);
  EXPECT_EQ(status("Bearer a-long-token"), 200);
  EXPECT_EQ(status("bearer a-long-token"), 200);
  EXPECT_EQ(status("Bearer a-long-tokem"), 401);
  EXPECT_EQ(status("Basic a-long-token"), 401);
  EXPECT_EQ(status("Bearer YW5uYTpwYXNz"), 401);
  EXPECT_EQ(status("", "/"), 401);
  EXPECT_EQ(status("", "/nothing"), 401) << "not even which paths there are";
}

TEST_F(Web, LeavesProbesOpen) {
  EXPECT_EQ(status("", "/healthz"), 200);
  EXPECT_EQ(status("", "/readyz"), 200);
}

TEST_F(Web, RemembersRightPasswords) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(status(kRight), 200);
  EXPECT_EQ(access_.passwords_checked(), 1u);
  config_.users["anna"] = kPass2b;
  access_.set(config_);
  EXPECT_EQ(status(kRight), 200);
  EXPECT_EQ(access_.passwords_checked(), 2u) << "what is remembered is remembered with its hash";
  config_.users.clear();
  access_.set(config_);
  EXPECT_EQ(status(kRight), 401) << "a user that was removed is out at once";
}

TEST_F(Web, BoundsChecksOfWrongPasswords) {
  EXPECT_EQ(status(kRight), 200);
  const auto burst = static_cast<int>(WebAccess::kCheckBurst);
  for (int i = 0; i < burst; ++i) EXPECT_EQ(status(i % 2 == 0 ? kWrong : kUnknown), 401) << i;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(status(kWrong), 429);
  EXPECT_EQ(access_.passwords_checked(), 1u + static_cast<unsigned>(burst));
  EXPECT_EQ(status(kRight), 200) << "who is known already is not kept out";
  EXPECT_EQ(status("Bearer a-long-token"), 200) << "nor are tokens";
  clock_.advance_ms(500);
  EXPECT_EQ(status(kWrong), 401);
  EXPECT_EQ(status(kWrong), 429);
}

TEST_F(Web, AsksForCertificatesAsConfigured) {
  WebConfig config;
  config.client_certificates = ClientCertificates::kRequired;
  access_.set(config);
  EXPECT_EQ(status(""), 403);
  EXPECT_EQ(status("", "/metrics", ClientCertificate::kBad), 403);
  EXPECT_EQ(status("", "/metrics", ClientCertificate::kVerified), 200);
  EXPECT_EQ(status("", "/healthz"), 200);
  config.client_certificates = ClientCertificates::kVerifiedIfGiven;
  access_.set(config);
  EXPECT_EQ(status(""), 200);
  EXPECT_EQ(status("", "/metrics", ClientCertificate::kBad), 403);
  config.users["anna"] = kPass2y;
  access_.set(config);
  EXPECT_EQ(status("", "/metrics", ClientCertificate::kVerified), 401) << "both are asked for";
}

}  // namespace
}  // namespace ncclscope::agent
