import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// One script that Airflow loads into its own page. It uses the libraries that Airflow's page provides.
export default defineConfig({
  plugins: [react()],
  define: { "process.env.NODE_ENV": JSON.stringify("production") },
  build: {
    outDir: "../static",
    emptyOutDir: true,
    lib: { entry: "src/main.tsx", formats: ["umd"], name: "AirflowPlugin", fileName: () => "pages.js" },
    rollupOptions: {
      external: ["react", "react-dom", "react/jsx-runtime", "react-router-dom", "@chakra-ui/react", "@emotion/react"],
      output: {
        exports: "default",
        globals: {
          react: "React",
          "react-dom": "ReactDOM",
          "react/jsx-runtime": "ReactJSXRuntime",
          "react-router-dom": "ReactRouterDOM",
          "@chakra-ui/react": "ChakraUI",
          "@emotion/react": "EmotionReact",
        },
      },
    },
  },
});
