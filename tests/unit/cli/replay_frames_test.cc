// SPDX-License-Identifier: Apache-2.0
//
// Frames of a replay: what an agent would make of them, without one.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "cli/replay/session.h"
#include "proto/wire/decode.h"
#include "tests/unit/archive/traffic.h"

namespace ncclscope::cli {
namespace {

using archive::testing::make_communicator;
using archive::testing::make_job;
using archive::testing::make_process;
using archive::testing::Traffic;

struct Seen {
  std::vector<std::uint64_t> indexes;
  std::map<std::uint8_t, int> types;
  bool order_ok = true;  // communicators before their use
};

Seen look(const std::vector<ReplayedFrame>& frames) {
  Seen seen;
  std::map<std::uint16_t, bool> announced;
  for (const ReplayedFrame& frame : frames) {
    wire::FrameHeader header{};
    const auto error = wire::read_frame(
        frame.packet, header,
        [&](std::uint8_t type, std::span<const std::byte> record, std::uint64_t index) {
          ++seen.types[type];
          std::uint16_t id = 0;
          std::memcpy(&id, record.data() + 2, sizeof id);
          if (type == static_cast<std::uint8_t>(wire::RecordType::kCommunicatorInit))
            announced[id] = true;
          if (type == static_cast<std::uint8_t>(wire::RecordType::kOperation)) {
            seen.order_ok = seen.order_ok && announced[id];
            seen.indexes.push_back(index);
          }
          return true;
        });
    EXPECT_EQ(error, wire::DecodeError::kNone);
  }
  return seen;
}

TEST(FrameMaker, KeepsIndexesAndAnnouncesBeforeUse) {
  ReplayedSession session;
  session.id = 7;
  make_hello(make_job(), make_process(1), "4711", session);
  std::vector<ReplayedFrame> frames;
  Traffic traffic(1);
  std::vector<std::uint64_t> given;
  {
    FrameMaker maker(session, frames);
    for (std::uint64_t i = 1; i <= 2000; ++i) {
      const wire::Operation o = traffic.next();
      if (i % 97 == 0) continue;  // a gap
      given.push_back(i);
      maker.add(make_communicator(o.communicator, 0), i,
                {reinterpret_cast<const std::byte*>(&o), sizeof o}, traffic.now_ns());
    }
  }
  const Seen seen = look(frames);
  EXPECT_EQ(seen.indexes, given);
  EXPECT_TRUE(seen.order_ok);
  EXPECT_EQ(seen.types.at(static_cast<std::uint8_t>(wire::RecordType::kCommunicatorInit)), 2);
  EXPECT_EQ(session.operations, given.size());
  EXPECT_EQ(session.last, given.back());
  for (std::size_t i = 1; i < frames.size(); ++i) EXPECT_GE(frames[i].due_ns, frames[i - 1].due_ns);
}

TEST(FrameMaker, LeavesOutWhatAnAgentWouldNotCountAgain) {
  ReplayedSession session;
  make_hello(make_job(), make_process(1), "4711", session);
  std::vector<ReplayedFrame> frames;
  Traffic traffic(1, 1);
  {
    FrameMaker maker(session, frames);
    for (const std::uint64_t index : {5u, 6u, 6u, 4u, 7u}) {
      const wire::Operation o = traffic.next();
      maker.add(make_communicator(0, 0), index, {reinterpret_cast<const std::byte*>(&o), sizeof o},
                traffic.now_ns());
    }
  }
  EXPECT_EQ(look(frames).indexes, (std::vector<std::uint64_t>{5, 6, 7}));
  EXPECT_EQ(session.records, 3u);
}

TEST(FrameMaker, SaysAnewWhoACommunicatorIsOnceItIsAnother) {
  ReplayedSession session;
  make_hello(make_job(), make_process(1), "4711", session);
  std::vector<ReplayedFrame> frames;
  Traffic traffic(1, 1);
  {
    FrameMaker maker(session, frames);
    archive::Communicator c = make_communicator(0, 0);
    std::uint64_t index = 0;
    const auto operation = [&] {
      const wire::Operation o = traffic.next();
      maker.add(c, ++index, {reinterpret_cast<const std::byte*>(&o), sizeof o}, traffic.now_ns());
    };
    operation();
    operation();
    wire::CommunicatorFinalize f{};
    wire::set_header(f, wire::RecordType::kCommunicatorFinalize);
    maker.add(c, ++index, {reinterpret_cast<const std::byte*>(&f), sizeof f}, traffic.now_ns());
    operation();
    c.nnodes = 4;
    operation();
  }
  EXPECT_EQ(look(frames).types.at(static_cast<std::uint8_t>(wire::RecordType::kCommunicatorInit)),
            3);
}

}  // namespace
}  // namespace ncclscope::cli
