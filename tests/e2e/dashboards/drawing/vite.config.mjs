// SPDX-License-Identifier: Apache-2.0
import react from "@vitejs/plugin-react";

/** Grafana's table imports this CommonJS module as if its default export were the component. */
const unwrapped = {
  name: "unwrapped-default",
  enforce: "pre",
  async resolveId(source, importer, options) {
    if (source !== "react-custom-scrollbars-2" || importer?.startsWith("\0")) return null;
    const found = await this.resolve(source, importer, { ...options, skipSelf: true });
    return found && `\0unwrapped:${found.id}`;
  },
  load(id) {
    if (!id.startsWith("\0unwrapped:")) return null;
    const path = JSON.stringify(id.slice("\0unwrapped:".length));
    return `import module from ${path};\nexport default module.default ?? module;\nexport const Scrollbars = module.Scrollbars;\n`;
  },
};

export default {
  base: "./",
  plugins: [unwrapped, react()],
  define: { "process.env.NODE_ENV": '"production"' },
  build: { chunkSizeWarningLimit: 20000 },
};
