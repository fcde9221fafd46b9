/* A page opened from disk may not start a worker from a file; this one runs its script in a frame of the page instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.queue = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      inside.addEventListener = (kind, listener) => { if (kind === "message") this.inbox = listener; };
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.importScripts = () => Promise.resolve();
      const script = frame.contentDocument.createElement("script");
      script.src = String(url);
      script.onload = () => { this.ready = true; this.queue.splice(0).forEach((data) => this.deliver(data)); };
      frame.contentDocument.body.appendChild(script);
    }
    deliver(data) { if (this.inbox) this.inbox(new MessageEvent("message", { data })); }
    postMessage(data) { this.ready ? this.deliver(data) : this.queue.push(data); }
    terminate() {}
  };
}
