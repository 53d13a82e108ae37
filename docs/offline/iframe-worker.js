// The search runs in a worker, which browsers start for no page that is opened from disk. There a frame does its work:
// it has the same names (postMessage, importScripts, messages as events) and the worker's script within it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await this.load(each)
      }
      this.loaded = this.load(url)
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script")
        Object.assign(script, {src: url, onload: resolve, onerror: reject})
        this.inside.document.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", {data})))
    }
  }
}
