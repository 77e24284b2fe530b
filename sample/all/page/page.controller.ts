import { Controller, Get, Header, Headers } from '@nestjs/common';
import { CONTENT_SECURITY_POLICY, renderPage } from './page.html.js';

@Controller()
export class PageController {
  /** The page shows the address that the visitor has used, so that copied commands work for them. */
  @Get()
  @Header('Content-Type', 'text/html; charset=utf-8')
  @Header('Content-Security-Policy', CONTENT_SECURITY_POLICY)
  @Header('X-Content-Type-Options', 'nosniff')
  page(@Headers('host') host = 'localhost:3000'): string {
    return renderPage(`http://${host}`);
  }
}
