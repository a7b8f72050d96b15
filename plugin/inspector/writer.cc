// SPDX-License-Identifier: Apache-2.0
#include "plugin/inspector/writer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "plugin/clock.h"

namespace ncclscope::plugin::inspector {
namespace {

/// While it lives, the thread may be waiting for the file system.
class InFiles {
 public:
  explicit InFiles(Shared& shared) noexcept : shared_(shared) {
    shared_.in_files.store(true, kRelaxed);
  }
  ~InFiles() { shared_.in_files.store(false, kRelaxed); }
  InFiles(const InFiles&) = delete;
  InFiles& operator=(const InFiles&) = delete;

 private:
  Shared& shared_;
};

}  // namespace

void FileWriter::set_up(const Options& options, Shared& shared, std::int32_t pid,
                        std::uint64_t now_ns) noexcept {
  options_ = &options;
  shared_ = &shared;
  writer_.pid = pid;
  if (gethostname(writer_.host, sizeof writer_.host - 1) != 0) writer_.host[0] = '\0';
  due_ns_ = now_ns + options.interval_ns;
  char name[kMaxFileNameBytes];
  std::snprintf(name, sizeof name, "%s-pid%d.log", writer_.host, pid);
  output_.file.set_path(options.directory, name);
  p2p_output_.file.set_path(options.p2p_directory, name);
}

void FileWriter::work(std::uint64_t now_ns, bool alive, bool last) noexcept {
  const bool due = now_ns >= due_ns();
  const bool ended = shared_->flush.exchange(false, kAcqRel);
  if (!due && !ended && !last && shared_->queue.size() < kQueueItems / 2) return;
  take_all();
  if (due) due_ns_ = now_ns + options_->interval_ns;
  if (!options_->prometheus) {
    flush_lines();
    return;
  }
  // Nothing is shown of a process that communicates no more.
  if (last || !alive) {
    windows_.clear();
    remove_textfiles();
  } else if (due) {
    write_textfiles();
    windows_.clear();
  }
}

void FileWriter::take_all() noexcept {
  realtime_offset_ns_ = realtime_offset_ns();
  // Not more than there was at first: a process at full pace must not keep the others waiting.
  for (std::size_t left = shared_->queue.size(); left > 0; --left) {
    const Item* item = shared_->queue.front();
    if (item == nullptr) return;
    take(*item);
    shared_->queue.pop();
  }
}

void FileWriter::take(const Item& item) noexcept {
  std::uint8_t type = 0;
  std::uint16_t context = 0;
  std::memcpy(&type, &item.record, sizeof type);
  std::memcpy(&context, reinterpret_cast<const std::byte*>(&item.record) + 2, sizeof context);
  if (type == 0) {
    end_context(context);
  } else if (type == static_cast<std::uint8_t>(wire::RecordType::kChannelDetail)) {
    static_assert(sizeof(wire::ChannelDetail) == sizeof item.record);
    std::memcpy(&channels_[channel_count_++ % kChannels], &item.record, sizeof item.record);
  } else if (LineText line; describe(item, line)) {
    if (!options_->prometheus) {
      write_line(context, line);
    } else if (windows_.add(*options_, writer_, shared_->contexts[context], line)) {
      shared_->counts.written.fetch_add(1, kRelaxed);
    } else {
      shared_->counts.failed.fetch_add(1, kRelaxed);
    }
  }
}

/// False: its time is not known.
bool FileWriter::describe(const Item& item, LineText& line) noexcept {
  wire::Operation o;
  static_assert(sizeof o == sizeof item.record);
  std::memcpy(&o, &item.record, sizeof o);
  line.function = static_cast<model::Function>(o.function);
  line.datatype = static_cast<model::DataType>(o.datatype);
  line.algorithm = static_cast<model::Algorithm>(o.algorithm_protocol & 0xFu);
  line.protocol = static_cast<model::Protocol>(o.algorithm_protocol >> 4u);
  line.count = wire::count_of(o);
  line.peer = o.root_or_peer;
  // NCCL numbers no transfers; Inspector counts them from 1.
  const bool p2p = model::is_point_to_point(line.function);
  const bool numbered = (o.flags & wire::operation_flags::kSequenceKnown) != 0;
  line.sequence = p2p ? o.index + 1u : numbered ? o.sequence : o.index;
  line.completed_ns = item.completed_ns;
  line.duration_ns = wire::duration_ns_of(o);
  line.source = wire::timing_of(o) == wire::TimingSource::kGpu ? TimeSource::kKernelGpu
                                                               : TimeSource::kKernelCpu;
  if (options_->wants_channels()) collect_channels(o, line);
  return line.duration_ns > 0;
}

void FileWriter::collect_channels(const wire::Operation& o, LineText& line) noexcept {
  const bool p2p = model::is_point_to_point(line.function);
  const auto epoch = [this](std::uint64_t monotonic) {
    return monotonic + static_cast<std::uint64_t>(realtime_offset_ns_);
  };
  std::size_t found = 0;
  std::uint64_t first = ~std::uint64_t{0};
  std::uint64_t last = 0;
  // Backwards: they came just before their operation.
  const std::uint64_t held = std::min<std::uint64_t>(channel_count_, kChannels);
  for (std::uint64_t i = 1; i <= held && found < o.channels_seen && found < kMaxTracedChannels;
       ++i) {
    const wire::ChannelDetail& d = channels_[(channel_count_ - i) % kChannels];
    if (d.communicator != o.communicator || d.index != o.index || (d.is_p2p != 0) != p2p ||
        d.host_start_ns == 0)
      continue;
    traces_[found++] = {d.channel, epoch(d.host_start_ns), epoch(d.host_stop_ns)};
    first = std::min(first, d.host_start_ns);
    last = std::max(last, d.host_stop_ns);
  }
  std::reverse(traces_.begin(), traces_.begin() + static_cast<std::ptrdiff_t>(found));
  if (line.duration_ns == 0 && found == o.channels_seen && last > first) {
    line.duration_ns = last - first;
    line.completed_ns = epoch(last);
  }
  line.traced = options_->verbose;
  line.enqueued_ns = epoch(wire::enqueue_time_ns_of(o));
  line.channels = {traces_.data(), found};
}

void FileWriter::write_line(std::uint16_t context, const LineText& line) noexcept {
  const bool p2p = model::is_point_to_point(line.function);
  const bool apart = p2p && options_->p2p_directory[0] != '\0';
  Output& output = apart ? p2p_output_ : output_;
  TextBuffer& text = apart ? p2p_text_ : text_;
  const std::size_t need =
      kMaxLineBytes + (line.traced ? line.channels.size() * kMaxChannelBytes : 0);
  if (text.room() < need || output.count == kMaxLines) flush(output, text);
  put_line(text, writer_, options_->format, shared_->contexts[context].text, line);
  output.lines[output.count++] = {static_cast<std::uint32_t>(text.size()), context, p2p};
}

void FileWriter::flush(Output& output, TextBuffer& text) noexcept {
  if (text.size() == 0) return;
  std::size_t done = 0;
  {
    const InFiles waiting(*shared_);
    done = output.file.append(text.view());
  }
  for (std::size_t i = 0; i < output.count; ++i) {
    const Output::Line& line = output.lines[i];
    Context& context = shared_->contexts[line.context];
    if (line.end <= done) {
      ++(line.p2p ? context.p2p : context.collectives);
      shared_->counts.written.fetch_add(1, kRelaxed);
    } else {
      ++(line.p2p ? context.p2p_lost : context.collectives_lost);
      shared_->counts.failed.fetch_add(1, kRelaxed);
    }
  }
  output.count = 0;
  text.clear();
}

void FileWriter::flush_lines() noexcept {
  flush(output_, text_);
  flush(p2p_output_, p2p_text_);
  if (options_->format == Format::kV40) return;
  for (std::uint16_t i = 0; i < kContexts; ++i) {
    if (shared_->contexts[i].used.load(kAcquire)) write_statistics(i);
  }
  flush(output_, text_);
}

void FileWriter::write_statistics(std::uint16_t number) noexcept {
  Context& c = shared_->contexts[number];
  StatisticsText s;
  s.collectives = c.collectives;
  s.collectives_lost = c.collectives_lost + c.collectives_refused.load(kRelaxed);
  s.collectives_lost_before = c.collectives_told;
  s.p2p = c.p2p;
  s.p2p_lost = c.p2p_lost + c.p2p_refused.load(kRelaxed);
  s.p2p_lost_before = c.p2p_told;
  if (s.collectives == 0 && s.p2p == 0 && s.collectives_lost == s.collectives_lost_before &&
      s.p2p_lost == s.p2p_lost_before)
    return;
  if (text_.room() < kMaxLineBytes) flush(output_, text_);
  put_statistics(text_, writer_, options_->format, c.text, s,
                 monotonic_ns() + static_cast<std::uint64_t>(realtime_offset_ns_));
  c.collectives = c.p2p = 0;
  c.collectives_told = s.collectives_lost;
  c.p2p_told = s.p2p_lost;
}

void FileWriter::end_context(std::uint16_t context) noexcept {
  if (!options_->prometheus) {
    // Its lines are counted in it.
    flush(output_, text_);
    flush(p2p_output_, p2p_text_);
    if (options_->format != Format::kV40) write_statistics(context);
  }
  shared_->contexts[context].used.store(false, kRelease);
}

void FileWriter::write_textfiles() noexcept {
  const InFiles waiting(*shared_);
  for (std::size_t i = 0; i < windows_.gpus(); ++i) {
    Windows::Gpu& gpu = windows_.gpu(i);
    text_.clear();
    if (!windows_.put_text(text_, *options_, writer_, i)) continue;
    if (text_.size() > 0) {
      gpu.shown =
          replace_file(options_->directory, gpu.file, writer_.pid, text_.view()) || gpu.shown;
    } else if (gpu.shown) {
      remove_file(options_->directory, gpu.file);
      gpu.shown = false;
    }
  }
  text_.clear();
}

void FileWriter::remove_textfiles() noexcept {
  const InFiles waiting(*shared_);
  for (std::size_t i = 0; i < windows_.gpus(); ++i) {
    Windows::Gpu& gpu = windows_.gpu(i);
    if (gpu.shown) remove_file(options_->directory, gpu.file);
    gpu.shown = false;
  }
}

}  // namespace ncclscope::plugin::inspector
