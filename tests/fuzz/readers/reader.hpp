// The readers of what comes from outside, or from a disk that others write to, and what an input of each is.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "folder.hpp"

namespace kvbound::fuzz {

/// What a part of an input is, so that mutations can keep its form.
enum class Format {
  text,     ///< JSON, lines of it, or any other text
  cbor,     ///< JSON in binary
  tensors,  ///< a safetensors file or an .npz
  gguf
};

using Parts = std::span<const std::string_view>;

/// An input is a letter that names a reader, and the parts that it reads, each with its length in four bytes
/// before it; but the last one, which goes to the input's end, unless the parts repeat.
struct Reader {
  char letter;
  const char* name;
  std::vector<Format> parts;
  /// Reads all of the parts, or throws what main() turns into one line and an exit code.
  void (*read)(Folder& folder, Parts parts);
  bool repeats = false;  ///< the parts come any number of times
};

/// All readers, by their letters.
std::span<const Reader> readers();

/// The reader that an input names; null: none.
const Reader* reader_of(std::string_view input);

/// The parts of an input: as many as the reader has, or a multiple of that; of a cut input
/// the last ones are empty.
std::vector<std::string_view> parts_of(const Reader& reader, std::string_view input);
/// The input that has these parts.
std::string input_of(const Reader& reader, std::span<const std::string> parts);

enum class Verdict { read, refused };

/// Reads an input. An error that main() would call an internal one ends the program, as does a refusal of
/// several lines; an input of no reader is refused.
Verdict read_input(std::string_view input);

// The readers' functions, in the files of this folder.
void read_gguf(Folder& folder, Parts parts);
void read_gguf_set(Folder& folder, Parts parts);
void read_hugging_face(Folder& folder, Parts parts);
void read_hugging_face_shards(Folder& folder, Parts parts);
void read_token_file(Folder& folder, Parts parts);
void read_flashinfer(Folder& folder, Parts parts);
void read_python_signature(Folder& folder, Parts parts);
void read_trace(Folder& folder, Parts parts);
void read_trace_shards(Folder& folder, Parts parts);
void read_dump(Folder& folder, Parts parts);
void read_given(Folder& folder, Parts parts);
void read_kernel_file(Folder& folder, Parts parts);
void read_plan(Folder& folder, Parts parts);
void read_sweep(Folder& folder, Parts parts);
void read_item_result(Folder& folder, Parts parts);
void read_attempts(Folder& folder, Parts parts);
void read_rates(Folder& folder, Parts parts);
void read_worker_line(Folder& folder, Parts parts);
void read_tasks(Folder& folder, Parts parts);
void read_results(Folder& folder, Parts parts);
void read_report_document(Folder& folder, Parts parts);
void read_peer(Folder& folder, Parts parts);
void read_instances(Folder& folder, Parts parts);
void read_option_text(Folder& folder, Parts parts);
void read_command_line(Folder& folder, Parts parts);

}  // namespace kvbound::fuzz
