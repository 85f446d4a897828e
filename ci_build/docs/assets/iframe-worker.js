// Run the search of the site in a hidden frame when its pages are opened from a folder: browsers start no workers for
// file: URLs. The theme would load such a script from another server otherwise.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      // Firefox replaces the first document of a frame, and Chromium does not, so the script waits for the event.
      this.frame.onload = () => this.start(url);
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        for (const data of this.waiting) this.send(data);
        this.waiting = null;
      };
      inside.document.body.append(script);
    }

    send(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
