// SPDX-License-Identifier: Apache-2.0
#include "agent/api/access_list.h"

#include <gtest/gtest.h>

#include "agent/access/secrets.h"

namespace ncclscope::agent {
namespace {

Caller with(Role role, std::int64_t uid = -1, std::string name = "token:t") {
  return Caller{uid, role, std::move(name)};
}

TEST(Roles, ReadWhatTheyMay) {
  struct Case {
    Role role;
    bool own, others, unowned;
  };
  for (const Case& c :
       {Case{Role::kUser, true, false, false}, Case{Role::kViewer, true, true, true},
        Case{Role::kOperator, true, true, true}, Case{Role::kIngest, false, false, false},
        Case{Role::kAdministrator, true, true, true}}) {
    const Caller caller = with(c.role, 1000);
    EXPECT_EQ(caller.may_read(1000), c.own) << name(c.role);
    EXPECT_EQ(caller.may_read(1001), c.others) << name(c.role);
    EXPECT_EQ(caller.may_read(-1), c.unowned) << name(c.role);
  }
}

TEST(Roles, MayDoWhatIsTheirs) {
  struct Case {
    Role role;
    bool read, control, publish, administer;
  };
  for (const Case& c :
       {Case{Role::kUser, true, true, false, false}, Case{Role::kViewer, true, false, false, false},
        Case{Role::kOperator, true, true, false, false},
        Case{Role::kIngest, false, false, true, false}}) {
    const Caller caller = with(c.role, 1000);
    EXPECT_EQ(refusal(caller, Permission::kRead).empty(), c.read) << name(c.role);
    EXPECT_EQ(refusal(caller, Permission::kControl).empty(), c.control) << name(c.role);
    EXPECT_EQ(refusal(caller, Permission::kPublish).empty(), c.publish) << name(c.role);
    EXPECT_EQ(refusal(caller, Permission::kAdminister).empty(), c.administer) << name(c.role);
  }
  const Caller local{1000, Role::kUser, ""};
  EXPECT_EQ(refusal(local, Permission::kPublish), "") << "as on the plugins' socket";
  EXPECT_NE(refusal(local, Permission::kAdminister), "");
  EXPECT_EQ(refusal(Caller{0, Role::kAdministrator, ""}, Permission::kAdminister), "");
  EXPECT_NE(refusal(Caller{}, Permission::kRead), "") << "an unknown user owns nothing";
}

TEST(Roles, RefusalsSayWhoMay) {
  EXPECT_EQ(refusal(with(Role::kViewer), Permission::kControl),
            "not allowed: the role viewer of token:t may not change what is recorded; the roles "
            "user (own jobs) and operator (all) may");
}

constexpr const char* kGood = R"(
[[certificate]]
name = "ops.example.org"
role = "operator"

[[token]]
name = "grafana"
sha256 = "2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B"   # "secret"
role = "viewer"

[[token]]
name = "anna"
sha256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"   # "foo"
role = "user:1001"
)";

TEST(AccessList, FindsTokensAndCertificates) {
  const Result<AccessList> list = AccessList::parse(kGood, "access.toml");
  ASSERT_TRUE(list.ok()) << list.status().message();
  const auto viewer = list.value().by_token("secret");
  ASSERT_TRUE(viewer.has_value());
  EXPECT_EQ(viewer->role, Role::kViewer);
  EXPECT_EQ(viewer->name, "token:grafana");
  EXPECT_EQ(list.value().by_token("foo")->uid, 1001);
  for (const char* wrong : {"", "Secret", "secret ", "fo"})
    EXPECT_FALSE(list.value().by_token(wrong).has_value()) << wrong;
  EXPECT_EQ(list.value().by_certificate({"x", "ops.example.org"})->role, Role::kOperator);
  EXPECT_FALSE(list.value().by_certificate({}).has_value());
  EXPECT_FALSE(list.value().by_certificate({"ops.example.or", "grafana"}).has_value());
}

TEST(AccessList, ExplainsEveryFault) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : {
           Case{"x = 1", "a.toml:1: unknown key 'x'"},
           Case{"token = 1", "a.toml:1: write [[token]]"},
           Case{"\n[[token]]\nname=\"a\"\nrole=\"viewer\"", "a.toml:2: sha256 is missing"},
           Case{"[[token]]\nname=\"a\"\nrole=\"viewer\"\nsha256=\"12\"", "64 hex digits"},
           Case{"[[certificate]]\nname=\"a\"\nrole=\"root\"", "role 'root' is none of viewer"},
           Case{"[[certificate]]\nname=\"a\"\nrole=\"administrator\"", "is none of viewer"},
           Case{"[[certificate]]\nname=\"a\"\nrole=\"user:no-such-user-here\"", "there is no user"},
           Case{"[[certificate]]\nname=\"a\"\nrole=\"user:4294967295\"", "there is no user"},
           Case{"[[certificate]]\nname=\"a\"\nrole=\"viewer\"\nsha256=\"\"",
                "unknown key 'sha256'"},
           Case{"[[certificate]\n", "a.toml:1: "},
       }) {
    const Result<AccessList> list = AccessList::parse(c.text, "a.toml");
    ASSERT_FALSE(list.ok()) << c.text;
    EXPECT_NE(list.status().message().find(c.message), std::string::npos)
        << list.status().message();
  }
}

TEST(Secrets, HashAndCompare) {
  EXPECT_EQ(sha256_hex("foo"), "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae");
  EXPECT_TRUE(is_sha256_hex(sha256_hex("")));
  EXPECT_FALSE(is_sha256_hex(std::string(63, 'a')));
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcd"));
}

}  // namespace
}  // namespace ncclscope::agent
