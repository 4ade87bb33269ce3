#include "text_options.hpp"

namespace kvbound::sim {

void add_text_options(CommandLine& line) {
  line.add_flag("plot", "print figures, too; in colour on a terminal, unless NO_COLOR is set");
  line.add_flag("markdown", "print tables as Markdown's");
}

TextStyle text_style(const CommandLine& line) {
  TextStyle style = terminal_style();
  style.plot = line.has("plot");
  style.markdown = line.has("markdown");
  if (style.markdown) style.colour = false;
  return style;
}

}  // namespace kvbound::sim
